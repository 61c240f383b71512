"""A damaged index is made again from the payloads or the dump."""

from pathlib import Path

import pytest

from ingest.api import repair
from ingest.reader.damage import Damage
from ingest.reader.verifying.verify import WRONG_DIGEST, WRONG_STATISTICS
from ingest.repairing.tables import DIGEST_CHUNK, STATISTICS_CHUNK, doubtful_tables
from tests import checker
from tests.damages import DAMAGES
from workers.model import StepKey


@pytest.mark.parametrize(
    ("source", "reason", "doubtful"),
    [
        ("a.npy", f"{WRONG_DIGEST}, by one byte", {DIGEST_CHUNK}),
        ("a.npy", f"{WRONG_STATISTICS}: max", {STATISTICS_CHUNK}),
        ("", f"{WRONG_DIGEST}", set()),  # not of one file
        ("a.npy", "its shard is truncated", set()),
    ],
)
def test_a_table_is_doubted_if_it_contradicts_a_payload(source: str, reason: str, doubtful: set[str]) -> None:
    assert doubtful_tables([Damage(StepKey(0, 1), source, reason)]) == doubtful


@pytest.mark.parametrize("kind", ["digests missing", "statistics flipped", "findings missing"])
def test_what_follows_from_payloads_needs_no_dump(kind: str, lone_store: Path) -> None:
    before = checker.objects(lone_store)
    DAMAGES[kind](lone_store)
    assert repair(lone_store, apply=True).is_clean
    assert checker.objects(lone_store) == before


def test_an_index_that_is_lost_is_said_with_what_to_do(lone_store: Path) -> None:
    DAMAGES["labels flipped"](lone_store)
    (outcome,) = repair(lone_store, apply=True).repairs
    assert "--dump" in outcome.lost[0].reason
    assert "--rank 0 --step 1" in outcome.lost[0].reason
