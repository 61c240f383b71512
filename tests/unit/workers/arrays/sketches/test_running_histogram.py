"""Histograms of tensors that arrive in blocks, of every type."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.compiled.kernel_loops import BINS
from workers.arrays.histogram import Histogram
from workers.arrays.statistics import RunningStatistics

TYPES: tuple[Any, ...] = (
    *("f4", ">f4", "f8", "f2", ">f2", "i1", "u1", "i2", "u4", "i8", "?"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
)


def counted(values: np.ndarray[Any, Any]) -> dict[int, tuple[int, int]]:
    """Return by exponent the positive and negative elements that lie in (2**e, 2**(e+1)]."""
    with np.errstate(invalid="ignore"):  # NaN may be signalling
        wide = values.astype(np.float64)
    wide = wide[np.isfinite(wide) & (wide != 0)]
    mantissa, exponent = np.frexp(np.abs(wide))
    exponent = np.clip(exponent - 1 - (mantissa == 0.5), -127, 127)
    return {
        int(e): (int(((exponent == e) & (wide > 0)).sum()), int(((exponent == e) & (wide < 0)).sum()))
        for e in np.unique(exponent)
    }


def made(dtype: Any, size: int = 70_003) -> np.ndarray[Any, Any]:
    """Return numbers of all sizes, and what is not a number."""
    rng = np.random.default_rng(1)
    wide = rng.standard_normal(size) * np.exp(4 * rng.standard_normal(size))
    wide[::101], wide[::103], wide[::107], wide[::109] = 0, np.nan, np.inf, -np.inf
    dtype = np.dtype(dtype)
    if dtype.kind in "iub" or "int" in dtype.name:
        wide = np.clip(np.nan_to_num(wide), -8, 7) if dtype.name == "int4" else np.nan_to_num(wide) % 100
    with np.errstate(over="ignore", invalid="ignore"):
        return wide.astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_counted_in_the_pass_of_the_statistics(dtype: Any) -> None:
    values = made(dtype)
    running, without = RunningStatistics(with_histogram=True), RunningStatistics()
    for piece in np.array_split(values, 3):
        running.update(piece)
        without.update(piece)
    rows = {e: (positive, negative) for e, positive, negative in running.histogram_rows().tolist()}
    assert rows == counted(values)
    np.testing.assert_equal(running.row(), without.row())
    assert not len(without.histogram_rows())


@given(cuts=st.lists(st.integers(0, 9_001), max_size=6), dtype=st.sampled_from(["f4", "f8", "f2"]))
def test_any_split_gives_the_same_and_parts_add_up(cuts: list[int], dtype: str) -> None:
    values = made(dtype, 9_001)
    running, added = RunningStatistics(with_histogram=True), np.zeros((2, BINS - 1), np.int64)
    for piece in np.split(values, sorted(cuts)):
        running.update(piece)
        part = histogram_of(piece)
        added += part.positive, part.negative
    whole = histogram_of(values)
    np.testing.assert_equal(added, [whole.positive, whole.negative])
    pieces = Histogram.of_rows(running.histogram_rows(), running.result())
    np.testing.assert_equal([pieces.positive, pieces.negative], added)


def histogram_of(values: np.ndarray[Any, Any]) -> Histogram:
    running = RunningStatistics(with_histogram=True)
    running.update(values)
    return Histogram.of_rows(running.histogram_rows(), running.result())
