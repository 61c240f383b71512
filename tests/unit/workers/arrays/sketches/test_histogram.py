"""Bounds and quantiles of histograms, against numpy."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.histogram import Bounds, Histogram
from workers.arrays.statistics import RunningStatistics, Statistics

FLOATS = st.floats(width=32)
VALUES = st.lists(FLOATS, min_size=1, max_size=60)
SHARES = (0.0, 0.001, 0.25, 0.5, 0.9, 0.999, 1.0)


def histogram_of(values: np.ndarray[Any, Any]) -> Histogram:
    running = RunningStatistics(with_histogram=True)
    running.update(values)
    return Histogram.of_rows(running.histogram_rows(), running.result())


@given(values=VALUES, bound=st.floats(0, 1e39), power=st.integers(-126, 127))
def test_counts_up_to_a_bound_are_those_of_numpy(values: list[float], bound: float, power: int) -> None:
    array = np.array(values, np.float32)
    magnitudes = np.abs(array[np.isfinite(array) & (array != 0)]).astype(np.float64)
    histogram = histogram_of(array)
    counted = histogram.at_most(bound)
    assert counted.low <= np.count_nonzero(magnitudes <= bound) <= counted.high
    exact = int(np.count_nonzero(magnitudes <= 2.0**power))
    assert histogram.at_most(2.0**power) == Bounds(exact, exact)


@given(values=VALUES, share=st.sampled_from(SHARES), magnitude=st.booleans())
def test_quantiles_of_numpy_lie_between_the_bounds(
    values: list[float], share: float, *, magnitude: bool
) -> None:
    array = np.array(values, np.float32)
    finite = array[np.isfinite(array)].astype(np.float64)
    finite = np.abs(finite) if magnitude else finite
    bounds = histogram_of(array).quantile(share, magnitude=magnitude)
    if not finite.size:
        assert math.isnan(bounds.low)
        return
    low, high = (float(np.quantile(finite, share, method=how)) for how in ("lower", "higher"))
    # Where numpy interpolates, it rounds.
    assert bounds.low <= low
    assert high <= bounds.high


def test_bounds_of_a_quantile_differ_by_a_factor_of_two() -> None:
    values = np.random.default_rng(0).standard_normal(10_001).astype(np.float32)
    histogram = histogram_of(values)
    for share in (0.01, 0.3, 0.9, 0.999):
        bounds = histogram.quantile(share)
        assert max(abs(bounds.low), abs(bounds.high)) <= 2 * min(abs(bounds.low), abs(bounds.high))
    assert histogram.quantile(0) == Bounds(float(values.min()), float(values.min()))
    assert histogram.quantile(1, magnitude=True).high == np.abs(values).max()


@pytest.mark.parametrize("rows", [[[200, 1, 0]], [[-128, 1, 0]], [[0, -1, 2]], [[0, 5, 0]]])
def test_an_impossible_histogram_is_refused(rows: list[list[int]]) -> None:
    statistics = Statistics(1, 0, 0, 0, 0, 0, 1, 1.0, 1.0, 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"impossible bin|other elements"):
        Histogram.of_rows(np.array(rows, np.int64), statistics)
