"""The counts by sign and power of two, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.compiled import kernels


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


def kernel_counts(values: np.ndarray[Any, Any]) -> dict[int, tuple[int, int]]:
    counted_so_far = kernels.Counts()
    kernels.count_floats(values, counted_so_far)
    rows = kernels.sparse(counted_so_far, int((values == np.inf).sum()), int((values == -np.inf).sum()))
    return {e: (positive, negative) for e, positive, negative in rows.tolist()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(bits=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40))
def test_any_bits_are_counted_as_numpy_counts_them(dtype: Any, bits: list[int]) -> None:
    values = np.array(bits, np.uint64).view(np.uint8)[: len(bits) * 8].view(dtype)
    assert kernel_counts(values) == counted(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_power_of_two_belongs_to_the_bin_below_it(dtype: Any) -> None:
    values = np.array([1, np.nextafter(dtype(1), dtype(2)), 2, -4, 0, -0.0, np.inf, np.nan, -np.nan], dtype)
    assert kernel_counts(values) == {-1: (1, 0), 0: (2, 0), 1: (0, 1)}


def test_codes_are_counted_by_what_they_mean() -> None:
    counts, meanings = np.zeros(256, np.int64), np.zeros(256)
    counts[:5], meanings[:5] = (7, 3, 2, 1, 1), (0, 1.5, -3, np.inf, np.nan)
    counted_so_far = kernels.Counts()
    kernels.count_codes(counts, meanings, counted_so_far)
    assert kernels.sparse(counted_so_far, 1, 0).tolist() == [[0, 3, 0], [1, 0, 2]]
