"""Histograms of tensors that arrive in blocks, of every type."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.workers.arrays.compiled.test_histogram_kernels import counted
from workers.arrays.statistics import RunningStatistics

TYPES: tuple[Any, ...] = (
    *("f4", ">f4", "f8", "f2", ">f2", "i1", "u1", "i2", "u4", "i8", "?"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
)


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


def test_complex_numbers_have_none() -> None:
    running = RunningStatistics(with_histogram=True)
    running.update(np.array([1 + 2j, 3], np.complex64))
    assert not len(running.histogram_rows())
