"""A part of the cubes is the same as that part of the whole, and takes only the inner chunks that hold it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from ingest.reader import cube_reader
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
from ingest.reader.step_statistics import aggregated_steps, narrow_blocks
from tests.cube_stores import NAMES, once, put
from tests.wrapped_objects import WrappedObjects
from workers.arrays.statistics import FIELDS, STATISTICS, aggregated, default_aggregate, parts_of
from workers.store import commit
from workers.store.consolidated.cubes import CubeGrid
from workers.store.opening import open_objects, resolve


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of seven steps of three ranks, in chunks of two ranks, four tensors and three steps."""
    store, grid = tmp_path_factory.mktemp("view") / "run.zarr", CubeGrid(2, 4, 2, 3)
    objects = open_objects(resolve(store))
    commit.ensure_root(objects)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: grid))
        for step in range(7):
            for rank in (2, 0, 1):
                put(objects, rank, step, NAMES[: 3 + step % 4], anomalous=[step % 3])
            once(objects)
    return store


@pytest.fixture(scope="module")
def cubes(stored: Path) -> ConsolidatedCubes:
    """The view of this store, which nobody changes."""
    return view_of(stored)


def view_of(store: Path) -> ConsolidatedCubes:
    opened = open_cubes(open_objects(resolve(store)))
    assert opened is not None
    return opened


@pytest.mark.parametrize("tensors", [[0], [1, 2], [3, 4, 5], [5], [0, 5], [0, 1, 2, 3, 4, 5]])
def test_some_tensors_are_those_of_the_whole_block(tensors: list[int], cubes: ConsolidatedCubes) -> None:
    chosen = np.array(tensors)
    for place, narrow in enumerate(narrow_blocks(cubes, range(7), FIELDS, chosen)):
        whole = cubes.block(place)
        assert (narrow.step, narrow.ranks) == (whole.step, whole.ranks)
        np.testing.assert_array_equal(narrow.row, whole.row[:, chosen])
        np.testing.assert_array_equal(narrow.statistics, whole.statistics[:, chosen])


@pytest.mark.parametrize("tensors", [[0], [3, 4, 5], [0, 5], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_some_tensors_together_are_those_of_the_blocks(
    statistic: str, tensors: list[int], cubes: ConsolidatedCubes
) -> None:
    places = [6, 0, 3, 4]
    together = aggregated_steps(cubes, places, statistic, np.array(tensors))
    order = [cubes.ranks.tolist().index(rank) for rank in sorted(cubes.ranks.tolist())]
    for number, place in enumerate(places):
        block = cubes.block(place)
        values = sum(block.statistic(part)[:, tensors] for part in parts_of(statistic))
        expected = aggregated(np.asarray(values), default_aggregate(statistic))
        np.testing.assert_array_equal(together[number][order], expected)


class FarObjects(WrappedObjects):
    """A directory as if it were an object store; counts the ranges that are read."""

    is_local = False
    ranges = 0

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        self.ranges += 1
        return super().get_range(key, start, stop)


@pytest.mark.parametrize("end_nbytes", [0, 1 << 15])
def test_from_an_object_store_the_indexes_are_read_once(
    end_nbytes: int, cubes: ConsolidatedCubes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cube_reader, "_END_NBYTES", end_nbytes)
    monkeypatch.setattr(cube_reader, "_INDEXES", {})
    expected = aggregated_steps(cubes, range(7), "max", np.array([0]))
    far = FarObjects(cubes.objects)
    remote = ConsolidatedCubes(far, cubes.state)
    # Two blocks of three steps and one step, two chunks of ranks: of each the end, which is all of a small
    # object, and then a part.
    for requests in (6 if end_nbytes else 12, 6):
        far.ranges = 0
        np.testing.assert_array_equal(aggregated_steps(remote, range(7), "max", np.array([0])), expected)
        assert far.ranges == requests
    # Steps that are written again have other indexes.
    rewritten = ConsolidatedCubes(
        far, msgspec.structs.replace(cubes.state, rewrites=cubes.state.rewrites + 1)
    )
    far.ranges = 0
    aggregated_steps(rewritten, range(7), "max", np.array([0]))
    assert far.ranges == (6 if end_nbytes else 12)
