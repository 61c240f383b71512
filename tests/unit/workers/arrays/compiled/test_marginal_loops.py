"""The loops as Python runs them: `test_marginals` compares their object code with numpy."""

import math
from typing import Any

import numpy as np
import pytest

from tests.plain_loops import plain
from workers.arrays.compiled import marginal_loops as loops


def axes_of(*lengths: int) -> Any:
    """Return the part of a plan that is about axes, at the first row."""
    return np.array([number for length in lengths for number in (length, 0, 0)])


def test_going_on_to_the_next_row_is_going_to_it() -> None:
    lengths = (2, 3, 4)
    advanced = axes_of(*lengths)
    for row in range(24):
        gone = axes_of(*lengths)
        plain(loops._go_to)(row, gone)
        assert gone[loops.AT :: 3].tolist() == list(np.unravel_index(row, lengths))
        assert (gone == advanced).all()
        plain(loops._advance)(advanced)
    assert (advanced == axes_of(*lengths)).all()


def test_four_rows_are_summed_along_both_axes_in_one_pass() -> None:
    values = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    sums, squares, largest = np.ones(6), np.zeros(6), np.zeros(6, np.int32)
    flat = values.reshape(-1)
    moments = plain(loops._moments_of_four)(flat, sums, squares)
    tops = plain(loops._largest_of_four)(flat.view(np.int32), largest)
    wide = values.astype(np.float64)
    np.testing.assert_allclose(moments, [*wide.sum(axis=1), *np.square(wide).sum(axis=1)])
    np.testing.assert_allclose(sums - 1, wide.sum(axis=0))
    np.testing.assert_allclose(squares, np.square(wide).sum(axis=0))
    np.testing.assert_array_equal(np.array(tops, np.int32).view(np.float32), np.abs(values).max(axis=1))
    np.testing.assert_array_equal(largest.view(np.float32), np.abs(values).max(axis=0))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 9])
def test_columns_are_summed_four_rows_at_a_time_and_one_by_one(rows: int) -> None:
    values = np.random.default_rng(rows).normal(size=(rows, 5)).astype(np.float32)
    sums, squares, largest = np.zeros(5), np.zeros(5), np.zeros(5, np.int32)
    flat = values.reshape(-1)
    plain(loops._add_columns)((flat, flat.view(np.int32)), rows, sums, squares, largest)
    wide = values.astype(np.float64)
    np.testing.assert_allclose(sums, wide.sum(axis=0))
    np.testing.assert_allclose(squares, np.square(wide).sum(axis=0))
    np.testing.assert_array_equal(largest.view(np.float32), np.abs(values).max(axis=0))


def narrowed(value: float) -> float:
    out = np.zeros(1, np.float32)
    plain(loops._narrow)(np.array([value]), out)
    return float(out[0])


@pytest.mark.parametrize(
    ("value", "narrow"),
    [(1.5, 1.5), (0.0, 0.0), (1e300, 3.4028234663852886e38), (-1e300, -3.4028234663852886e38)],
)
def test_a_sum_becomes_the_nearest_finite_float32(value: float, narrow: float) -> None:
    assert narrowed(value) == narrow


@pytest.mark.parametrize("value", [1e-300, -1e-300])
def test_what_is_not_zero_does_not_become_zero(value: float) -> None:
    assert narrowed(value) == math.copysign(1.401298464324817e-45, value)
