"""Counts of elements by sign and power of two, by compiled loops: see `workers.arrays.histogram_loops`.

Compiled, kept and loaded as the loops of `workers.arrays.kernels` are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays import histogram_loops, kernels
from workers.arrays.histogram_loops import BINS, LAST, LOWEST_EXPONENT, TABLES, WIDTH
from workers.arrays.kernels import address


def new_tables() -> npt.NDArray[np.int64]:
    """Return the counts of no elements: shape (8, 520). The count of a bin is the sum over all tables."""
    return np.zeros((TABLES, WIDTH), np.int64)


def count_floats(values: npt.NDArray[Any], tables: npt.NDArray[np.int64]) -> None:
    """Count elements.

    Args:
        values: 1-D and contiguous, float32 or float64 in native byte order.
        tables: from `new_tables`.
    """
    entries = kernels.entries()
    if values.dtype.itemsize == 4:
        if entries is not None:
            entries["histogram_f4"](address(values), values.size, address(tables))
        else:
            histogram_loops.count_float32(values.view(np.int32), tables)
    elif entries is not None:
        entries["histogram_f8"](address(values), values.size, address(_BIN_OF_FLOAT64), address(tables))
    else:
        histogram_loops.count_float64(values.view(np.int64), _BIN_OF_FLOAT64, tables)


def accumulate_floats(
    values: npt.NDArray[Any], state: npt.NDArray[np.float64], tables: npt.NDArray[np.int64]
) -> None:
    """Add elements to their statistics, and count them while they are in the L1 cache.

    Args:
        values: 1-D and contiguous, float32 or float64 in native byte order.
        state: from `kernels.new_state`.
        tables: from `new_tables`.
    """
    entries = kernels.entries()
    if entries is None:
        kernels.accumulate(values, state)
        count_floats(values, tables)
        return
    entry = entries[f"counted_f{values.dtype.itemsize}"]
    scratch, own = kernels.scratch_address(), address(_BIN_OF_FLOAT64)
    entry(address(values), values.size, scratch, address(state), own, address(tables))


def count_codes(
    counts: npt.NDArray[np.int64], values: npt.NDArray[np.float64], tables: npt.NDArray[np.int64]
) -> None:
    """Count elements of one byte.

    Args:
        counts: how often each of the 256 bytes occurs.
        values: what each of them means, NaN and infinities included.
        tables: from `new_tables`.
    """
    bins = _BIN_OF_FLOAT64[((values.view(np.int64) - 1) >> 52) & 4095]
    tables[0, : 2 * BINS] += np.bincount(bins, counts, minlength=2 * BINS).astype(np.int64)


def sparse(tables: npt.NDArray[np.int64], pos_inf: int, neg_inf: int) -> npt.NDArray[np.int64]:
    """Return the bins that hold finite elements other than zero.

    Args:
        tables: from `new_tables`.
        pos_inf: how many of the counted elements are +Inf.
        neg_inf: how many are -Inf.

    Returns:
        (bin, 3): exponent, number of positive and of negative elements, by exponent. The magnitudes of an
        exponent e are in (2**e, 2**(e+1)].
    """
    out = np.empty((LAST + 2, 3), np.int64)
    entries = kernels.entries()
    if entries is not None:
        entries["histogram_sparse"](address(tables), pos_inf, neg_inf, address(out))
    else:
        histogram_loops.write_sparse(tables, pos_inf, neg_inf, out)
    return out[: out[-1, 0]].copy()


def _bins_of_float64() -> npt.NDArray[np.uint16]:
    """Return the bin of each combination of the upper 12 bits of a float64."""
    upper = np.arange(4096)
    exponent = upper & 2047
    magnitude = np.where(exponent == 2047, BINS - 1, np.clip(exponent - 1023 - LOWEST_EXPONENT, 0, LAST))
    return np.asarray(magnitude + BINS * (upper >> 11), np.uint16)


_BIN_OF_FLOAT64 = _bins_of_float64()
