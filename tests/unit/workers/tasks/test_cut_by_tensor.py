"""One cube of a full block of steps, cut along the tensors."""

import numpy as np
import pytest

from ingest.reader.cubes.consolidated import ConsolidatedCubes, open_cubes
from tests.cube_stores import NAMES, SMALL, once, put
from workers.store import commit
from workers.store.consolidated.cubes import CubeGrid
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.tasks.consolidate import CutBlock, CutJob, cut_by_tensor


@pytest.fixture
def cubes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> ConsolidatedCubes:
    """Three steps of three ranks, in chunks of two ranks and four tensors."""
    monkeypatch.setattr(CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: SMALL))
    objects = open_objects(resolve(tmp_path_factory.mktemp("view") / "run.zarr"))
    commit.ensure_root(objects)
    for step in range(3):
        for rank in range(3):
            put(objects, rank, step, NAMES[: 4 + step])
    once(objects)
    view = open_cubes(objects)
    assert view is not None
    return view


def job(objects: ObjectStore, name: str = "max") -> CutJob:
    return CutJob(objects.address, SMALL, name, 0, 0, 0)


@pytest.mark.parametrize("name", ["max", "zero_count", "row"])
def test_the_object_holds_what_those_of_the_steps_hold(name: str, cubes: ConsolidatedCubes) -> None:
    key = f"consolidated/by_tensor/{name}/c/0/0/0"
    before = cubes.objects.get(key)
    cubes.objects.delete(key)
    assert cut_by_tensor(job(cubes.objects, name)) == CutBlock(job(cubes.objects, name))
    assert cubes.objects.get(key) == before
    held = cubes.layouts.by_tensor[name].decode(before, key)
    for place in range(3):
        np.testing.assert_array_equal(held[place], cubes.cube(name, place)[:2, :4])


def test_what_no_rank_has_is_not_known(cubes: ConsolidatedCubes) -> None:
    cubes.objects.delete("consolidated/max/c/1/0/0")
    assert not cut_by_tensor(job(cubes.objects)).damage
    held = cubes.steps_block(cubes.layouts.by_tensor["max"], 0)
    assert np.isnan(held[1, :2, :4]).all()
    np.testing.assert_array_equal(held[0], cubes.cube("max", 0))


def test_damage_is_named_and_nothing_is_written(cubes: ConsolidatedCubes) -> None:
    cubes.objects.put("consolidated/max/c/1/0/0", b"nothing")
    cubes.objects.delete("consolidated/by_tensor/max/c/0/0/0")
    assert "consolidated/max/c/1/0/0" in cut_by_tensor(job(cubes.objects)).damage
    assert cubes.objects.get("consolidated/by_tensor/max/c/0/0/0") is None
