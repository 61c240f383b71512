"""The compiled loops of the comparison, by the state that they keep."""

import math
from typing import Any

import numpy as np
import pytest

from workers.arrays.comparison import accumulate, new_state
from workers.arrays.compiled import kernels
from workers.arrays.compiled.comparison_loops import BLOCK, PLACES

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """The objects, made now if `make setup` has not done it."""
    kernels.warm_up()


def compared(a: Array, b: Array) -> tuple[int, dict[str, float]]:
    """Return how many pairs were added, and the state by name."""
    state = new_state()
    added = accumulate(a, b, state, np.empty((4, BLOCK)))
    return added, dict(zip(PLACES, state.tolist(), strict=True))


@pytest.mark.parametrize("code", ["f4", "f8"])
def test_sums_and_errors_are_those_of_the_formulae(code: str) -> None:
    b = np.linspace(-3, 5, BLOCK + 7).astype(code)
    a = (b * 1.002).astype(code)
    added, state = compared(a, b)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    assert added == b.size
    assert state["aa"] == pytest.approx(wide_a @ wide_a)
    assert state["ab"] == pytest.approx(wide_a @ wide_b)
    assert state["dd"] == pytest.approx(((wide_a - wide_b) ** 2).sum())
    assert state["max_abs"] == np.abs(wide_a - wide_b).max()
    assert (state["within_1"], state["within_5"]) == ((a == b).sum(), b.size)


def test_pairs_that_are_not_finite_are_equal_or_counted() -> None:
    nan, inf = math.nan, math.inf
    a = np.array([nan, nan, inf, inf, -inf, 1.0])
    b = np.array([nan, 1.0, inf, -inf, 2.0, 1.0])
    added, state = compared(a, b)
    assert added == a.size
    assert (state["nan"], state["inf"], state["unequal"], state["within_1"]) == (1, 2, 3, 3)


@pytest.mark.parametrize("value", [1e200, 1e-200])
def test_block_whose_squares_overflow_or_vanish_is_left_to_the_caller(value: float) -> None:
    values = np.ones(3 * BLOCK)
    values[BLOCK : 2 * BLOCK] = value
    added, state = compared(values, 1.5 * values)
    assert added == BLOCK
    assert (state["unequal"], state["aa"]) == (BLOCK, BLOCK)


@pytest.mark.parametrize("code", ["f4", "f8"])
def test_counts_and_extremes_are_those_of_numpy(code: str) -> None:
    rng = np.random.default_rng(6)
    b = rng.standard_normal(2 * BLOCK + 11).astype(code)
    a = (b * rng.choice([1, 1.0005, 1.002, 1.1], b.size)).astype(code)
    a[:9], b[4:20] = 0, 0
    _, state = compared(a, b)
    error = np.abs(a.astype(float) - b)
    with np.errstate(all="ignore"):
        relative = np.where(b == 0, error * 2.0**52, error / np.abs(b.astype(float)))
    assert (state["max_abs"], state["max_relative"]) == (error.max(), relative.max())
    small = [(relative < limit).sum() for limit in (0.001, 0.005)]
    assert [state["unequal"], state["within_1"], state["within_5"]] == [(error != 0).sum(), *small]
