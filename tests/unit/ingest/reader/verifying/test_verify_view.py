"""What lies beside the steps is verified, too."""

import time
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.reader.verifying import uncommitted, verify_copies, verify_view
from tests.cube_stores import once, put
from tests.gc_stores import age
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED
from workers.store.consolidated.cubes import CubeGrid
from workers.store.opening import connect, open_objects, resolve


def test_a_step_without_a_commit_is_noticed_after_a_day(tmp_path: Path) -> None:
    """Until then somebody may be writing it."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        dump.add(np.arange(5.0), step=step)
    ingest_directly(dump.root, store)
    objects = connect(resolve(store))
    (store / "rank_0/step_1/zarr.json").unlink()
    (store / "rank_0/step_2/zarr.json").write_text("{}")  # damaged, not missing
    assert uncommitted(objects) == []
    age(store)
    assert uncommitted(objects) == [StepKey(0, 1)]
    assert uncommitted(objects, now=time.time() - 2 * 86400.0) == []


def test_a_copy_that_is_not_its_commit_is_named(tmp_path: Path) -> None:
    objects = open_objects(resolve(tmp_path / "run.zarr"))
    for key in (first := StepKey(0, 1)), StepKey(1, 1), StepKey(0, 2):
        put(objects, key.rank, key.step or 0)
    once(objects)
    put(objects, first.rank, first.step or 0)
    assert list(verify_copies(objects)) == []  # the change is announced
    objects.delete_many([f"{CHANGED}/{name}" for name in objects.children(CHANGED)])
    (damage,) = verify_copies(objects)
    assert "the copy of rank 0 step 1 is not its commit" in str(damage)
    assert once(objects, check=True).appended == ()  # nothing but the copy is written again
    assert list(verify_copies(objects)) == []
    for name in objects.sizes("consolidated/commit"):
        objects.put(f"consolidated/commit/{name}", b"spoiled")
    (damage,) = verify_copies(objects)
    assert "consolidated/commit" in str(damage)


def test_cubes_by_tensor_that_are_not_what_the_steps_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: CubeGrid(1, 8, 2, 2))
    )
    objects = open_objects(resolve(tmp_path / "run.zarr"))
    commit.ensure_root(objects)
    for step in range(5):
        put(objects, 0, step)
    once(objects)
    assert list(verify_view(objects)) == []
    key = "consolidated/by_tensor/max/c/{}/0/0"
    other = objects.get(key.format(1))
    assert other is not None
    objects.put(key.format(0), other)
    objects.delete("consolidated/by_tensor/row/c/1/0/0")
    assert sorted(map(str, verify_view(objects))) == [
        "consolidated/by_tensor/max: of steps 0-1, it has not what max has",
        "consolidated/by_tensor/row/c/1/0/0: missing",
    ]
    objects.put(key.format(0), other[:-1])
    assert any(key.format(0) in str(damage) for damage in verify_view(objects))
    # A check makes it again.
    assert once(objects, check=True).appended == (0, 1, 2, 3, 4)
    assert list(verify_view(objects)) == []


@pytest.fixture
def sketched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose view was made step by step; an object of `sketches` has two tensors."""
    monkeypatch.setattr(
        CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: CubeGrid(1, 2, 2, 2))
    )
    store = tmp_path / "run.zarr"
    for step in range(3):
        dump = MadeDump(tmp_path / f"dump_{step}")
        for slot in range(1 + 2 * step):
            values = np.full(5, slot + 1.0, np.float32)
            dump.add(values, tensor_name(slot=slot, time=slot + 1), step=step)
        ingest_directly(dump.root, store, sketches=True)
        ingest.consolidate(store)
    return store


def test_the_cube_of_sketches_is_read(sketched: Path) -> None:
    objects = open_objects(resolve(sketched))
    assert list(verify_view(objects)) == []
    key = "consolidated/sketches/c/{}/0/0/0/{}"
    first, other = key.format(2, 0), key.format(2, 1)
    kept = objects.get(first)
    assert kept is not None
    for damaged in (kept[:-1], bytes([kept[0] ^ 1]) + kept[1:]):
        objects.put(first, damaged)
        assert [first in str(damage) for damage in verify_view(objects)] == [True]
    objects.delete(first)
    assert [f"{first}: missing" in str(damage) for damage in verify_view(objects)] == [True]
    # What is not damaged, but of other tensors, has the wrong number of them.
    last = objects.get(key.format(2, 2))
    assert last is not None
    objects.put(first, last)
    assert list(map(str, verify_view(objects))) == [
        "consolidated/sketches: rank 0 step 2: it has histograms of 4 tensors instead of 5"
    ]
    # A check makes it again.
    objects.delete(other)
    assert once(objects, check=True).appended == (0, 1, 2)
    assert list(verify_view(objects)) == []
    assert objects.get(first) == kept
