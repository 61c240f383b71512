"""Conditions on the cubes give what conditions on the steps give, from the cubes that they name."""

from typing import Any

import pytest

from ingest.api import ConsolidatedCubes, DumpStore
from ingest.reader.cubes.conditions import find


@pytest.fixture
def cubes(consolidated: DumpStore) -> ConsolidatedCubes:
    """The cubes of two ranks, two steps and ten tensors; one element of rank 1 step 9 is NaN."""
    return consolidated.consolidated()


def rows_of(cubes: ConsolidatedCubes, where: str, **options: Any) -> list[tuple[int, int, str]]:
    frame = find(cubes, where, options.pop("steps", None), include_partial=False)
    return list(zip(frame["step"], frame["rank"], frame["name"], strict=True))


@pytest.mark.parametrize(
    "where",
    [
        "nan_count > 0",
        "not nan_count > 0",
        "max > 2.2",
        "nan_count > 0 or max > 2.2",
        "op_type == 'Log' and rank == 1",
        "name == 'MatMul.a.output.3'",
        "slot in [2, 3] and step == 9",
        "l2_norm > 1e9",
        "role == 'activation'",
    ],
)
def test_rows_are_those_of_the_steps(where: str, cubes: ConsolidatedCubes, filled: DumpStore) -> None:
    tensors = filled.tensors(where=where)
    assert rows_of(cubes, where) == [(tensor.step, tensor.rank, tensor.name) for tensor in tensors]


def test_steps_that_are_not_searched_are_named(cubes: ConsolidatedCubes) -> None:
    cubes.table("status")[0, 1] = "partial"
    frame = find(cubes, "slot == 0", None, include_partial=False)
    assert frame.attrs["left_out"] == ["rank 1 step 8: partial"]
    assert len(frame) == 3
    assert len(find(cubes, "slot == 0", None, include_partial=True)) == 4
    assert find(cubes, "slot == 0", [9], include_partial=False).attrs["left_out"] == []
