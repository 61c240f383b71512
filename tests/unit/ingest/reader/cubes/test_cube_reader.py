"""The cubes hold what the steps hold, and are read with few requests."""

import numpy as np
import pytest

from ingest.api import ConsolidatedCubes, DumpStore
from ingest.reader.cube_conditions import open_cubes


@pytest.fixture
def cubes(consolidated: DumpStore) -> ConsolidatedCubes:
    """The cubes of two ranks, two steps and ten tensors; one element of rank 1 step 9 is NaN."""
    return consolidated.consolidated()


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
