"""What is lost is named, and the rest of the step is kept."""

from pathlib import Path

import pytest

from ingest.api import open_store, repair
from ingest.repairing.payloads import name_of_rest
from tests import checker
from tests.damages import STEP, flip, only
from workers.errors import DamagedStore


def test_a_generation_without_payloads_is_named_after_what_it_lacks() -> None:
    name = name_of_rest("a" * 32, [3, 1])
    assert name == name_of_rest("a" * 32, {1, 3})
    others = [name_of_rest("b" * 32, [1, 3]), name_of_rest("a" * 32, [13]), name_of_rest("a" * 32, [])]
    assert len({name, *others}) == 4
    assert all(len(other) == 32 and int(other, 16) for other in others)


def test_without_the_dump_copies_are_used_and_the_rest_is_named(lone_store: Path) -> None:
    """Of two tensors in a shard, one is on the other rank, too; the other one was nowhere else."""
    flip(only(lone_store, f"{STEP}/*/tensors/float32/c/0"), 5)
    before = checker.objects(lone_store)
    done = repair(lone_store, apply=True)
    (outcome,) = done.repairs
    assert not done.is_clean
    assert ["output.1" in lost.what for lost in outcome.lost] == [True]
    assert checker.objects(lone_store) == before  # half a shard is not written

    done = repair(lone_store, apply=True, accept_loss=True)
    assert done.repairs[0].generation
    assert done.repairs[0].remains == ()
    assert not done.is_clean  # something is lost
    assert repair(lone_store).is_clean  # and from now on said by the commit
    step = open_store(lone_store).step(0, 1)
    assert step.commit.summary.status == "partial"
    kept, lost, _ = step.tensors()
    assert kept.read().size == lost.statistics.count == 200
    assert lost.problem.startswith("lost: ")
    with pytest.raises(DamagedStore, match="lost"):
        lost.read()
