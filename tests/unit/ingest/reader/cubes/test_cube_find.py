"""Conditions on the cubes give what conditions on the steps give, from the cubes that they name."""

import pytest

from ingest.api import ConsolidatedCubes, DumpStore
from ingest.reader.cube_conditions import find


@pytest.fixture
def cubes(consolidated: DumpStore) -> ConsolidatedCubes:
    """The cubes of two ranks, two steps and ten tensors; one element of rank 1 step 9 is NaN."""
    return consolidated.consolidated()


def test_steps_that_are_not_searched_are_named(cubes: ConsolidatedCubes) -> None:
    cubes.table("status")[0, 1] = "partial"
    frame = find(cubes, "slot == 0", None, include_partial=False)
    assert frame.attrs["left_out"] == ["rank 1 step 8: partial"]
    assert len(frame) == 3
    assert len(find(cubes, "slot == 0", None, include_partial=True)) == 4
    assert find(cubes, "slot == 0", [9], include_partial=False).attrs["left_out"] == []
