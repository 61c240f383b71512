"""A damaged index is made again from the payloads or the dump."""

import shutil
from pathlib import Path

import pytest

from ingest.api import repair
from ingest.reader.damage import Damage
from ingest.reader.verifying.verify import STATISTICS_DO, WRONG_DIGEST, WRONG_STATISTICS
from ingest.repairing.tables import DIGEST_CHUNK, STATISTICS_CHUNK, doubtful_tables
from tests import checker
from tests.damages import DAMAGES, forget_checksums, only
from workers.model import StepKey


@pytest.mark.parametrize(
    ("source", "reason", "doubtful"),
    [
        ("a.npy", WRONG_DIGEST, {DIGEST_CHUNK: False}),  # the payload may be that of another step
        ("a.npy", f"{WRONG_DIGEST}{STATISTICS_DO}", {DIGEST_CHUNK: True}),
        ("a.npy", f"{WRONG_STATISTICS}: max", {STATISTICS_CHUNK: True}),
        ("", WRONG_DIGEST, {}),  # not of one file
        ("a.npy", "its shard is truncated", {}),
    ],
)
def test_a_table_is_doubted_if_it_contradicts_a_payload_and_is_not_listed(
    source: str, reason: str, doubtful: dict[str, bool]
) -> None:
    damages = [Damage(StepKey(0, 1), source, reason)]
    assert doubtful_tables(damages, {}) == doubtful
    assert doubtful_tables(damages, {DIGEST_CHUNK: 1, STATISTICS_CHUNK: 2}) == {}


@pytest.mark.parametrize("array", ["files", "tensors/float32"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_the_payloads_of_another_step_do_not_become_right(
    array: str, is_listed: bool, lone_store: Path
) -> None:
    if not is_listed:
        forget_checksums(lone_store / "rank_0/step_1/zarr.json")
    shards = [only(lone_store, f"rank_0/step_{step}/*/{array}/c/0") for step in (1, 2)]
    shutil.copy(shards[1], shards[0])
    before = checker.objects(lone_store)
    (outcome,) = repair(lone_store, apply=True).repairs
    assert checker.objects(lone_store) == before
    assert {lost.reason for lost in outcome.lost}
    assert outcome.remains


@pytest.mark.parametrize("kind", ["digests missing", "statistics flipped", "findings missing"])
def test_what_follows_from_payloads_needs_no_dump(kind: str, lone_store: Path) -> None:
    before = checker.objects(lone_store)
    DAMAGES[kind](lone_store)
    assert repair(lone_store, apply=True).is_clean
    assert checker.objects(lone_store) == before
