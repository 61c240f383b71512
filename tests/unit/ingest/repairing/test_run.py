"""Whatever is damaged is named, mended from what is there, and then as it was."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store, repair
from ingest.reader.verify_view import verify_surroundings
from tests import checker
from tests.damages import DAMAGES, flip, only
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly
from workers.errors import DamagedStore, UsageError


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
    assert [outcome.mended for outcome in done.repairs] == [outcome.mended for outcome in planned.repairs]
    assert damages_of(store) == []
    for step in open_store(store).select():
        step.export(tmp_path / "out")
    assert content(tmp_path / "out") == content(whole / "dump")
    before, after = checker.objects(whole / "run.zarr"), checker.objects(store)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert not {key for key in changed if not is_of_commit_or_view(key)}


SHARD = "rank_0/step_1/*/tensors/float32/c/0"


def test_without_the_dump_copies_are_used_and_the_rest_is_named(lone_store: Path) -> None:
    """Of two tensors in a shard, one is on the other rank, too; the other one was nowhere else."""
    flip(only(lone_store, SHARD), 5)
    before = content(lone_store)
    done = repair(lone_store, apply=True)
    (outcome,) = done.repairs
    assert not done.is_clean
    assert ["output.1" in lost.what for lost in outcome.lost] == [True]
    assert content(lone_store) == before  # half a shard is not written

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
    dump = MadeDump(tmp_path / "dump")
    for rank in range(2):
        dump.add(np.arange(99, dtype="<f4"), step=1, rank=rank)
    ingest_directly(dump.root, tmp_path / "run.zarr")
    shutil.rmtree(dump.root)
    shard = only(tmp_path / "run.zarr", SHARD)
    before = shard.read_bytes()
    shard.unlink()
    done = repair(tmp_path / "run.zarr", apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == ["rank 1 step 1"]
    assert shard.read_bytes() == before


def test_an_earlier_generation_is_a_source(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.arange(99, dtype="<f4"), step=1)
    (first,) = ingest_directly(dump.root, store)
    dump.add(b"late", "notes.txt", step=1)
    (second,) = ingest_directly(dump.root, store)
    shutil.rmtree(dump.root)
    only(store, f"rank_0/step_1/{second.fingerprint}/tensors/float32/c/0").unlink()
    done = repair(store, apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == [
        f"an earlier generation, {first.fingerprint}"
    ]


def test_another_place_of_the_dump_can_be_named(tmp_path: Path) -> None:
    """And only files with the digests of the index count: one was overwritten there."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in (1, 2):
        dump.add(np.arange(99, dtype="<f4") + step, tensor_name(time=1), step=step)
    ingest_directly(dump.root, store)
    moved = dump.root.rename(tmp_path / "elsewhere")
    (changed,) = moved.glob("rank_0/*/*/2/*.npy")
    changed.write_bytes(changed.read_bytes()[:-4] + b"abcd")
    for step in (1, 2):
        only(store, f"rank_0/step_{step}/*/tensors/float32/c/0").unlink()
    assert len(repair(store).repairs) == 2
    done = repair(store, [moved], apply=True)
    assert [outcome.is_whole for outcome in done.repairs] == [True, False]
    with pytest.raises(UsageError, match="does not exist"):
        repair(store, [dump.root])


@pytest.mark.parametrize("kind", ["digests missing", "statistics flipped", "findings missing"])
def test_what_follows_from_payloads_needs_no_dump(kind: str, lone_store: Path) -> None:
    before = content(lone_store)
    DAMAGES[kind](lone_store)
    assert repair(lone_store, apply=True).is_clean
    assert content(lone_store) == before


def test_a_commit_follows_from_its_objects(lone_store: Path) -> None:
    """What only the commit said is not known any more, so the step is partial and says why."""
    DAMAGES["commit empty"](lone_store)
    assert repair(lone_store, apply=True).is_clean
    step = open_store(lone_store).step(0, 1)
    assert step.commit.summary.status == "partial"
    assert "made again" in step.commit.record.problems[0]
    assert [tensor.read().size for tensor in step.tensors()] == [200, 200, 200]


def test_an_index_that_is_lost_is_said_with_what_to_do(lone_store: Path) -> None:
    DAMAGES["labels flipped"](lone_store)
    (outcome,) = repair(lone_store, apply=True).repairs
    assert "--dump" in outcome.lost[0].reason
    assert "--rank 0 --step 1" in outcome.lost[0].reason


def test_steps_of_another_grid_get_a_new_generation(tmp_path: Path) -> None:
    """The name of the generation depends on sizes that the commit does not say."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.arange(99, dtype="<f4"), step=1)
    (summary,) = ingest_directly(dump.root, store, SMALL_GRID)
    only(store, "rank_0/step_1/*/index/labels/c/0/0").unlink()
    planned = repair(store)
    assert planned.repairs[0].generation not in ("", summary.fingerprint)
    assert repair(store, apply=True).is_clean
    assert open_store(store).step(0, 1).fingerprint == planned.repairs[0].generation
    assert repair(store, grid=SMALL_GRID).is_clean


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dump-ingest store"):
        repair(tmp_path)
