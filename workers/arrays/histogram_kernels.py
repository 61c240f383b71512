"""Compiled loops that count the elements of a tensor by sign and power of two.

The bits of a float above its mantissa are its sign and its exponent, so a shift gives the bin. One is
subtracted before: a power of two itself then belongs to the bin below it, and zero to a bin of its own. A bin
is so (2**k, 2**(k+1)], and rounding to nearest even sends exactly whole bins to zero: half of the smallest
number of a type, which is a power of two, is rounded to zero, and whatever is above it is not.

Compiled and cached as `workers.arrays.kernels` is.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from workers.arrays.lazy_compile import compiled

#: Bins of one sign. Bin b holds magnitudes in (2**(b-127), 2**(b-126)]; bin 0 begins at 0, and `LAST` has no
#: end for types with larger numbers than float32. Bin 255 receives zeros and NaN, which are not kept.
BINS: Final = 256
#: The last bin with numbers. It receives infinities, too; `sparse` takes them out.
LAST: Final = 254
#: The exponent at which bin 0 ends is one more than this.
LOWEST_EXPONENT: Final = -127
#: Several tables, so that equal neighbours do not wait for one another. The same place of two tables is not a
#: multiple of 4096 bytes away: processors take such addresses for the same when they order loads and stores.
_TABLES: Final = 8
_PADDING: Final = 8


def new_tables() -> npt.NDArray[np.int64]:
    """Return the counts of no elements: shape (8, 520). The count of a bin is the sum over all tables."""
    return np.zeros((_TABLES, 2 * BINS + _PADDING), np.int64)


def count_floats(values: npt.NDArray[Any], tables: npt.NDArray[np.int64]) -> None:
    """Count elements.

    Args:
        values: 1-D and contiguous, float32 or float64 in native byte order.
        tables: from `new_tables`.
    """
    if values.dtype.itemsize == 4:
        pairs = values[: values.size - values.size % 2].view(np.int64)
        if pairs.flags.aligned:
            _count_float32_pairs(pairs, tables)
            values = values[2 * pairs.size :]
        _count_float32(values.view(np.int32), tables)
    else:
        _count_float64(values.view(np.int64), _BIN_OF_FLOAT64, tables)


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
    out = np.empty((LAST + 1, 3), np.int64)
    return out[: _write_sparse(tables, pos_inf, neg_inf, out)].copy()


def warm_up() -> None:
    """Compile, or load from the cache, every function for every type of element."""
    for code in ("f4", "f8"):
        count_floats(np.ones(3, code), tables := new_tables())
        sparse(tables, 0, 0)


def _bins_of_float64() -> npt.NDArray[np.uint16]:
    """Return the bin of each combination of the upper 12 bits of a float64."""
    upper = np.arange(4096)
    exponent = upper & 2047
    magnitude = np.where(exponent == 2047, BINS - 1, np.clip(exponent - 1023 - LOWEST_EXPONENT, 0, LAST))
    return np.asarray(magnitude + BINS * (upper >> 11), np.uint16)


_BIN_OF_FLOAT64 = _bins_of_float64()


@compiled(set())
def _count_float32(bits: Any, tables: Any) -> None:
    # Unsigned indexes: otherwise each is compared with 0, because numpy counts negative ones from the end.
    for i in range(bits.size):
        tables[i & 7, np.uint64(((bits[i] - 1) >> 23) & 511)] += 1


@compiled(set())
def _count_float32_pairs(bits: Any, tables: Any) -> None:
    # Two elements with each load.
    whole = bits.size - bits.size % 4
    for i in range(0, whole, 4):
        for pair in range(4):
            both = bits[i + pair]
            tables[2 * pair, np.uint64((((both & 0xFFFF_FFFF) - 1) >> 23) & 511)] += 1
            tables[2 * pair + 1, np.uint64((((both >> 32) - 1) >> 23) & 511)] += 1
    for i in range(whole, bits.size):
        tables[0, np.uint64((((bits[i] & 0xFFFF_FFFF) - 1) >> 23) & 511)] += 1
        tables[1, np.uint64((((bits[i] >> 32) - 1) >> 23) & 511)] += 1


@compiled(set())
def _count_float64(bits: Any, bin_of: Any, tables: Any) -> None:
    whole = bits.size - bits.size % 2
    for i in range(0, whole, 2):
        tables[0, np.uint64(bin_of[np.uint64(((bits[i] - 1) >> 52) & 4095)])] += 1
        tables[1, np.uint64(bin_of[np.uint64(((bits[i + 1] - 1) >> 52) & 4095)])] += 1
    for i in range(whole, bits.size):
        tables[0, np.uint64(bin_of[np.uint64(((bits[i] - 1) >> 52) & 4095)])] += 1


@compiled(set())
def _write_sparse(tables: Any, pos_inf: int, neg_inf: int, out: Any) -> Any:
    n = 0
    for place in range(LAST + 1):
        positive, negative = 0, 0
        for table in range(_TABLES):
            positive += tables[table, place]
            negative += tables[table, place + BINS]
        if place == LAST:
            positive -= pos_inf
            negative -= neg_inf
        if positive or negative:
            out[n, 0] = place + LOWEST_EXPONENT
            out[n, 1] = positive
            out[n, 2] = negative
            n += 1
    return n
