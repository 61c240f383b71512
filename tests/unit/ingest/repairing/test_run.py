"""Whatever is damaged is named, mended from what is there, and then as it was."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store, repair
from ingest.reader.verifying import verify_surroundings
from tests import checker
from tests.damages import DAMAGES, STEP, flip, only
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore, StoreFormatError, UsageError


def damages_of(store: Path) -> list[str]:
    """Return what verifying names; it cannot even open a store without its root."""
    try:
        opened = open_store(store)
    except DamagedStore as exc:
        return [exc.message]
    return [*map(str, opened.verify()), *map(str, verify_surroundings(opened.objects))]


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def is_of_commit_or_view(key: str) -> bool:
    """Return whether an object says when it was written, or may be another one with the same content."""
    return key.startswith("consolidated/") or (key.endswith("zarr.json") and key.count("/") == 2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", DAMAGES)
def test_every_kind_of_damage_is_named_and_mended(
    kind: str, store: Path, whole: Path, tmp_path: Path
) -> None:
    DAMAGES[kind](store)
    assert damages_of(store)
    damaged = content(store)

    planned = repair(store)

    assert content(store) == damaged  # a dry run
    assert not planned.is_clean
    assert all(outcome.is_whole and outcome.mended for outcome in planned.repairs)
    done = repair(store, apply=True)
    assert done.is_clean, done.to_dict()
    # Copies of commits that are repaired are announced as outdated, which only the plan has to name.
    assert all(outcome.mended in [plan.mended for plan in planned.repairs] for outcome in done.repairs)
    assert damages_of(store) == []
    for step in open_store(store).select():
        step.export(tmp_path / "out")
    assert content(tmp_path / "out") == content(whole / "dump")
    before, after = checker.objects(whole / "run.zarr"), checker.objects(store)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert not {key for key in changed if not is_of_commit_or_view(key)}


#: What is made again without the dump, and from what.
LONE = {
    "digests missing": "the payloads, computed again",
    "statistics flipped": "the payloads, computed again",
    "findings missing": "the index, by the rules of the commit",
    "commit with wrong totals": "the index",
    "metadata of an array changed": "the commit",
}


@pytest.mark.parametrize("kind", LONE)
def test_what_follows_from_the_store_needs_no_dump(kind: str, lone_store: Path) -> None:
    before = checker.objects(lone_store)
    DAMAGES[kind](lone_store)
    done = repair(lone_store, apply=True)
    assert done.is_clean
    assert {mended.origin for mended in done.repairs[0].mended} == {LONE[kind]}
    after = checker.objects(lone_store)
    changed = {key for key in before if after[key] != before[key]}
    assert not {key for key in changed if not is_of_commit_or_view(key)}


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


def test_a_tensor_that_another_rank_has_comes_from_there(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for rank in range(2):
        dump.add(np.arange(99, dtype="<f4"), step=1, rank=rank)
    ingest_directly(dump.root, store)
    shutil.rmtree(dump.root)
    shard = only(store, f"{STEP}/*/tensors/float32/c/0")
    before = shard.read_bytes()
    shard.unlink()
    done = repair(store, apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == ["rank 1 step 1"]
    assert shard.read_bytes() == before


@pytest.mark.parametrize("array", ["files", "tensors/float32"])
def test_the_payloads_of_another_step_do_not_become_right(array: str, lone_store: Path) -> None:
    shards = [only(lone_store, f"rank_0/step_{step}/*/{array}/c/0") for step in (1, 2)]
    shutil.copy(shards[1], shards[0])
    before = checker.objects(lone_store)
    (outcome,) = repair(lone_store, apply=True).repairs
    assert checker.objects(lone_store) == before
    assert outcome.lost
    assert outcome.remains


def test_what_is_no_store_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dump-ingest store"):
        repair(tmp_path)
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(StoreFormatError):
        repair(store, apply=True)
