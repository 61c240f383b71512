"""Heatmaps: aggregates of the values of a trend, gaps, and the scale of their colours."""

import math

import numpy as np
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from ingest.questions.heatmap import ALL, UNKNOWN, ZERO, HeatmapScale

ELEMENTS = 10**6


def field(values: list[float], statistic: str, aggregate: str = "sum", tensors: int = 3) -> xr.DataArray:
    array = np.array([values], float)
    axes = ("rank", "step")
    return xr.DataArray(
        array,
        dims=axes,
        coords={"elements": (axes, np.full(array.shape, float(ELEMENTS)))},
        attrs={"statistic": statistic, "aggregate": aggregate, "tensors": tensors},
    )


def levels(values: list[float], statistic: str, aggregate: str = "sum", tensors: int = 3) -> list[int]:
    levels: list[int] = HeatmapScale.of(field(values, statistic, aggregate, tensors)).level[0].tolist()
    return levels


@given(st.lists(st.integers(0, ELEMENTS), min_size=1))
def test_counts_are_zero_or_within_the_range_of_their_level_or_all(counts: list[int]) -> None:
    scale = HeatmapScale.of(field(list(map(float, counts)), "nan_count"))
    ranges = {level: (low, high) for level, low, high in scale.ranges}
    for count, level in zip(counts, scale.level[0].tolist(), strict=True):
        assert (level == ZERO) == (count == 0)
        assert (level == ALL) == (count == ELEMENTS)
        if level not in (ZERO, ALL):
            low, high = ranges[level]
            assert low <= count <= high
            assert low == int(low)
            assert high == int(high)
    assert list(ranges) == sorted(ranges)


def test_what_is_unknown_and_zero_have_levels_of_their_own() -> None:
    assert levels([math.nan, 0, math.inf, 5], "l2_norm", "max") == [UNKNOWN, ZERO, UNKNOWN, 4]
    assert levels([-1, 0, 3], "mean", "max") == [1, 2, 4]
    assert levels([0, 0], "nan_count") == [ZERO, ZERO]
    assert levels([1, 10, 1e4, 1e8], "l2_norm", "max") == [1, 1, 3, 4]
