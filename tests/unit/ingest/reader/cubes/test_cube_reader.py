"""The cubes hold what the steps hold, and are read with few requests."""

from collections.abc import Callable

import numpy as np
import pytest

from ingest.api import ConsolidatedCubes, DumpStore
from ingest.reader.cubes.conditions import open_cubes
from workers.errors import DamagedStore


@pytest.fixture
def cubes(consolidated: DumpStore) -> ConsolidatedCubes:
    """The cubes of two ranks, two steps and ten tensors; one element of rank 1 step 9 is NaN."""
    return consolidated.consolidated()


def test_blocks_hold_statistics_rows_and_digests(cubes: ConsolidatedCubes, filled: DumpStore) -> None:
    for place, number in enumerate(cubes.steps.tolist()):
        block = cubes.block(place)
        assert (block.step, block.ranks) == (number, (0, 1))
        for rank in block.ranks:
            tables = filled.step(rank, number).tables
            np.testing.assert_array_equal(block.statistics[rank], tables.statistics)
            np.testing.assert_array_equal(block.digest[rank], tables.digest)
            assert block.row[rank].tolist() == list(range(10))


def test_cubes_are_current_until_a_step_is_rewritten(cubes: ConsolidatedCubes) -> None:
    assert cubes.is_current()
    state = cubes.objects.get("consolidated/zarr.json")
    assert state is not None
    cubes.objects.put("consolidated/zarr.json", state.replace(b'"rewrites":0', b'"rewrites":1'))
    changed = open_cubes(cubes.objects)
    assert changed is not None
    assert changed.state.rewrites == 1
    assert not cubes.is_current()
    assert changed.is_current()


def test_steps_that_are_rewritten_or_partial_are_left_out(cubes: ConsolidatedCubes) -> None:
    assert cubes.left_out() == []
    cubes.table("status")[0, 1] = "partial"
    cubes._tables["quarantined"] = np.array([[0, 2], [0, 0]])
    assert [str(left) for left in cubes.left_out()] == ["rank 1 step 8: partial: 2 files quarantined"]
    assert cubes.left_out(include_partial=True) == []


READS: dict[str, Callable[[ConsolidatedCubes], object]] = {
    "status/c/0/0": lambda cubes: cubes.table("status"),
    "tensor/c/0": lambda cubes: cubes.tensors,
    "max/c/0/0/0": lambda cubes: cubes.cube("max", 0),
    "digest/c/1/0/0/0": lambda cubes: cubes.cube("digest", 1),
    "nan_count/c/0/0/0": lambda cubes: cubes.cube("nan_count", 0),
}


@pytest.mark.parametrize("key", READS)
def test_a_missing_object_is_damage(key: str, cubes: ConsolidatedCubes) -> None:
    cubes.objects.delete(f"consolidated/{key}")
    with pytest.raises(DamagedStore, match=f"consolidated/{key}: missing") as raised:
        READS[key](cubes)
    assert "consolidate --rebuild" in raised.value.hint
