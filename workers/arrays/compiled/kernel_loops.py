"""The loops over the elements of a tensor that are compiled; `kernels.py` calls them.

Several simple loops run over a block that stays in the L1 cache. Each does one thing, so the compiler can
turn it into vector instructions, and together they are faster than one loop that does everything. They
allocate nothing and raise nothing, so that their code needs no library: see `kernel_objects.py`.

Elements are counted by sign and power of two: the bits of a float above its mantissa are its sign and its
exponent, so a shift gives the bin. One is subtracted before: a power of two itself then belongs to the bin
below it, and zero to a bin of its own. A bin is so (2**k, 2**(k+1)], and rounding to nearest even sends
exactly whole bins to zero: half of the smallest number of a type, which is a power of two, is rounded to
zero, and whatever is above it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

_Loop = TypeVar("_Loop", bound=Callable[..., Any])
#: All loops, and the liberties in arithmetic that the compiler may take with each, as `numba.njit` has them.
LOOPS: Final[list[tuple[Callable[..., Any], set[str]]]] = []


def compiled(fastmath: set[str]) -> Callable[[_Loop], _Loop]:
    """Return a decorator for a loop, which `kernel_entries` compiles: importing it does not import numba."""

    def mark(function: _Loop) -> _Loop:
        LOOPS.append((function, fastmath))
        return function

    return mark


#: Elements per block: 16 KiB of float32, half of an L1 data cache.
BLOCK: Final = 4096
#: Above the first of these sizes, squares of float64 elements overflow; below the second, squares of their
#: differences vanish. The moments of such elements are kept in a unit that is a power of two, so that nothing
#: is rounded.
_LARGE: Final = 2.0**480
_SMALL: Final = 2.0**-300
_HUGE_UNIT: Final = 2.0**600
_TINY_UNIT: Final = 2.0**-600
#: The sum of squared deviations from the mean is computed as a difference of sums. If it is less than this
#: part of the larger sum, more than three digits of sixteen would cancel: then deviations are summed
#: directly.
_CANCELLED: Final = 1e-3

#: Float64 of memory for adding floats: a block as float64, one of finite floats, and two extremes.
SCRATCH: Final = 2 * BLOCK + 2

#: What each place of the state holds, all float64. Places that hold a statistic as it is have the name of its
#: field in `workers.arrays.statistics.Statistics`. `finite` is the number of finite elements. `mean` is the
#: distance of the mean from `origin`, in `unit`; `m2` is the sum of squared deviations, in the square of
#: `unit`. The origin is the first element: without it, the means of blocks that differ only in their last
#: digits would be rounded by more than they differ.
PLACES: Final = (
    *("count", "nan_count", "pos_inf_count", "neg_inf_count"),
    *("zero_count", "negative_count", "positive_count"),
    *("finite", "min", "max", "mean", "m2", "unit", "origin"),
)
#: The places by name, as numbers that compiled code can use.
COUNT, NAN, POS_INF, NEG_INF, ZERO, NEGATIVE, POSITIVE, FINITE, MIN, MAX, MEAN, M2, UNIT, ORIGIN = range(
    len(PLACES)
)

#: Sums may be reordered, which is what vector instructions do; NaN and infinities keep their meaning.
_REORDER: Final = {"reassoc", "contract", "nsz"}


@compiled(_REORDER)
def _find_extremes(signed: Any, unsigned: Any, extremes: Any) -> None:
    """Write the bits of the smallest and the largest of some floats to `extremes`, from their bits.

    If some floats are not finite, at least one of the two is not. Integers are compared because the compiler
    does not turn minima of floats into vector instructions. The bits of floats of one sign order by
    magnitude; the sign bit makes signed integers negative and unsigned ones large.
    """
    largest, lowest, highest = signed[0], unsigned[0], unsigned[0]
    for i in range(signed.size):
        largest = max(largest, signed[i])
        lowest = min(lowest, unsigned[i])
        highest = max(highest, unsigned[i])
    extremes[0], extremes[1] = highest, largest
    if extremes[0] == extremes[1]:  # all have one sign
        extremes[1 if largest < 0 else 0] = lowest


@compiled(_REORDER)
def _signs(x: Any, like: Any) -> Any:
    # Counted in integers as wide as the elements, so that all lanes have one width. A block of 4096 fits.
    count = like.dtype.type
    negative, zero = count(0), count(0)
    for i in range(x.size):
        negative = count(negative + count(x[i] < 0))
        zero = count(zero + count(x[i] == 0))
    return negative, zero


@compiled(_REORDER)
def _moments(x: Any) -> Any:
    """Return the first element, the distance of the mean from it, and the sum of squared deviations."""
    # From the first element, so that the mean of equal elements is exact.
    first = np.float64(x[0])
    total, squares = 0.0, 0.0
    for i in range(x.size):
        distance = np.float64(x[i]) - first
        total += distance
        squares += distance * distance
    mean = total / x.size
    m2 = squares - total * mean
    if m2 < squares * _CANCELLED:
        m2 = 0.0
        for i in range(x.size):
            deviation = (np.float64(x[i]) - first) - mean
            m2 += deviation * deviation
    return first, mean, m2


@compiled(set())
def _merge(state: Any, n: Any, first: Any, mean: Any, m2: Any) -> None:
    """Merge the moments of a block by Chan's formula; its mean is the distance from `first`."""
    before = state[FINITE]
    if before == 0:
        state[ORIGIN] = first
    total = before + n
    delta = ((first - state[ORIGIN]) + mean) - state[MEAN]
    state[MEAN] += delta * (n / total)
    state[M2] += m2 + delta * delta * (before * n / total)
    state[FINITE] = total


@compiled(set())
def _choose_unit(state: Any) -> None:
    """Choose the unit for the elements so far. It never shrinks, because the largest element decides."""
    largest = max(abs(state[MIN]), abs(state[MAX]))
    unit = 1.0
    if largest > _LARGE:
        unit = _HUGE_UNIT
    elif 0 < largest < _SMALL:
        unit = _TINY_UNIT
    if unit != state[UNIT]:
        ratio = state[UNIT] / unit
        state[MEAN] *= ratio
        state[ORIGIN] *= ratio
        state[M2] = state[M2] * ratio * ratio
        state[UNIT] = unit


@compiled(set())
def _split_finite(x: Any, finite: Any) -> Any:
    """Copy the finite elements to `finite`; return their number, and those of NaN, +Inf and -Inf."""
    n, nan, pos_inf, neg_inf = 0, 0, 0, 0
    for i in range(x.size):
        value = x[i]
        if math.isfinite(value):
            finite[n] = value
            n += 1
        elif math.isnan(value):
            nan += 1
        elif value > 0:
            pos_inf += 1
        else:
            neg_inf += 1
    return n, nan, pos_inf, neg_inf


@compiled(set())
def accumulate_floats(x: Any, scratch: Any, state: Any) -> None:
    """Add floats to `state`, without allocating anything.

    Args:
        x: the floats, their bits as signed integers, and the same as unsigned ones.
        scratch: memory of `SCRATCH` float64: as floats like `x`, of which the last are used; their bits as
            signed and as unsigned integers; and as float64, of which the first are used.
        state: from `new_state`.
    """
    floats, signed, unsigned = x
    scratch_floats, scratch_signed, scratch_unsigned, wide = scratch
    last = scratch_floats.size - 2
    first_finite = last - BLOCK
    extremes, extreme_bits = scratch_floats[last:], scratch_unsigned[last:]
    for start in range(0, floats.size, BLOCK):
        block, stop = floats[start : start + BLOCK], start + BLOCK
        _find_extremes(signed[start:stop], unsigned[start:stop], extreme_bits)
        if not (math.isfinite(extremes[0]) and math.isfinite(extremes[1])):
            n, nan, pos_inf, neg_inf = _split_finite(block, scratch_floats[first_finite:last])
            stop = first_finite + n
            block = scratch_floats[first_finite:stop]
            state[COUNT] += nan + pos_inf + neg_inf
            state[NAN] += nan
            state[POS_INF] += pos_inf
            state[NEG_INF] += neg_inf
            state[POSITIVE] += pos_inf
            state[NEGATIVE] += neg_inf
            if block.size == 0:
                continue
            _find_extremes(
                scratch_signed[first_finite:stop], scratch_unsigned[first_finite:stop], extreme_bits
            )
        negative, zero = _signs(block, signed)
        state[COUNT] += block.size
        state[ZERO] += zero
        state[NEGATIVE] += negative
        state[POSITIVE] += block.size - zero - negative
        state[MIN] = min(state[MIN], np.float64(extremes[0]))
        state[MAX] = max(state[MAX], np.float64(extremes[1]))
        _choose_unit(state)
        if state[UNIT] == 1:
            first, mean, m2 = _moments(block)
        else:
            for i in range(block.size):
                wide[i] = block[i] / state[UNIT]
            first, mean, m2 = _moments(wide[: block.size])
        _merge(state, block.size, first, mean, m2)


@compiled(_REORDER)
def accumulate_integers(x: Any, like: Any, state: Any) -> None:
    """Add integers to `state`; `like` is an array of the signed integers as wide as they are."""
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        low, high = block[0], block[0]
        for i in range(block.size):
            low = min(low, block[i])
            high = max(high, block[i])
        negative, zero = _signs(block, like)
        first, mean, m2 = _moments(block)
        state[COUNT] += block.size
        state[ZERO] += zero
        state[NEGATIVE] += negative
        state[POSITIVE] += block.size - zero - negative
        state[MIN] = min(state[MIN], np.float64(low))
        state[MAX] = max(state[MAX], np.float64(high))
        _merge(state, block.size, first, mean, m2)


@compiled(set())
def widen_half(half: Any, out: Any, bits: Any) -> None:
    """Write float16, given as its bits, to `out` as float32; `bits` is the same memory as integers."""
    # First write a power of two with the sign, or Inf or NaN; then multiply by the mantissa, an integer of 11
    # bits. No intermediate result is subnormal in float32: some libraries make processors flush these to 0.
    for i in range(half.size):
        h: Any = np.int32(half[i])
        exponent = (h >> 10) & 31
        special = 0x7F80_0000 if h & 0x3FF == 0 else 0x7FC0_0000
        scale = special if exponent == 31 else (max(exponent, 1) + 102) << 23
        bits[i] = scale | ((h & 0x8000) << 16)
    for i in range(half.size):
        h = np.int32(half[i])
        out[i] *= np.float32((h & 0x3FF) + (1024 if h & 0x7C00 else 0))


@compiled(set())
def _histogram(x: Any, tables: Any) -> Any:
    """Return how often each of the 256 codes occurs, in the first of four tables of memory."""
    # Four tables, so that equal neighbours do not wait for one another.
    tables[:] = 0
    whole = x.size - x.size % 4
    for i in range(0, whole, 4):
        tables[0, x[i]] += 1
        tables[1, x[i + 1]] += 1
        tables[2, x[i + 2]] += 1
        tables[3, x[i + 3]] += 1
    for i in range(whole, x.size):
        tables[0, x[i]] += 1
    for code in range(256):
        tables[0, code] += tables[1, code] + tables[2, code] + tables[3, code]
    return tables[0]


@compiled(set())
def _count_code(value: float, n: int, state: Any) -> None:
    state[COUNT] += n
    if math.isnan(value):
        state[NAN] += n
        return
    state[ZERO] += n if value == 0 else 0
    state[NEGATIVE] += n if value < 0 else 0
    state[POSITIVE] += n if value > 0 else 0
    if math.isinf(value):
        state[POS_INF if value > 0 else NEG_INF] += n
        return
    state[MIN] = min(state[MIN], value)
    state[MAX] = max(state[MAX], value)


@compiled(set())
def accumulate_codes(x: Any, values: Any, tables: Any, state: Any) -> None:
    """Add elements of one byte to `state`; `tables` is memory of shape (4, 256), int64."""
    counts = _histogram(x, tables)
    finite, total = 0, 0.0
    for code in range(256):
        n, value = counts[code], values[code]
        if n:
            _count_code(value, n, state)
            if math.isfinite(value):
                finite += n
                total += n * value
    if finite == 0:
        return
    mean = total / finite
    m2 = 0.0
    for code in range(256):
        n, value = counts[code], values[code]
        if n and math.isfinite(value):
            m2 += n * (value - mean) * (value - mean)
    _merge(state, finite, mean, 0.0, m2)


#: Bins of one sign. Bin b holds magnitudes in (2**(b-127), 2**(b-126)]; bin 0 begins at 0, and `LAST` has no
#: end for types with larger numbers than float32. Bin 255 receives zeros and NaN, which are not kept.
BINS: Final = 256
#: The last bin with numbers. It receives infinities, too; `write_sparse` takes them out.
LAST: Final = 254
#: The exponent at which bin 0 ends is one more than this.
LOWEST_EXPONENT: Final = -127
#: Several tables, so that equal neighbours do not wait for one another. The same place of two tables is not a
#: multiple of 4096 bytes away: processors take such addresses for the same when they order loads and stores.
#: They are of 32 bits, so that they and a block of elements fit into the L1 cache.
TABLES: Final = 8
WIDTH: Final = 2 * BINS + 16


@compiled(set())
def count_float32(bits: Any, tables: Any) -> None:
    """Add elements to tables of shape (TABLES, WIDTH), uint32, from their bits as int32."""
    # Unsigned indexes: otherwise each is compared with 0, because numpy counts negative ones from the end.
    whole = bits.size - bits.size % 8
    for i in range(0, whole, 8):
        for table in range(8):
            tables[table, np.uint64(((bits[i + table] - 1) >> 23) & 511)] += np.uint32(1)
    for i in range(whole, bits.size):
        tables[0, np.uint64(((bits[i] - 1) >> 23) & 511)] += np.uint32(1)


@compiled(set())
def count_float64(bits: Any, bin_of: Any, tables: Any) -> None:
    """Add elements to tables, from their bits as int64; `bin_of` has the bin of each upper 12 bits."""
    whole = bits.size - bits.size % 2
    for i in range(0, whole, 2):
        tables[0, np.uint64(bin_of[np.uint64(((bits[i] - 1) >> 52) & 4095)])] += np.uint32(1)
        tables[1, np.uint64(bin_of[np.uint64(((bits[i + 1] - 1) >> 52) & 4095)])] += np.uint32(1)
    for i in range(whole, bits.size):
        tables[0, np.uint64(bin_of[np.uint64(((bits[i] - 1) >> 52) & 4095)])] += np.uint32(1)


@compiled(set())
def add_tables(tables: Any, totals: Any) -> None:
    """Add tables to `totals`, (2 * BINS,) of int64, and set them to 0."""
    # All tables together hold fewer than 2**32 elements, so their sum needs no more bits than each.
    for place in range(2 * BINS):
        counted = np.uint32(0)
        for table in range(TABLES):
            counted = np.uint32(counted + tables[table, place])
            tables[table, place] = 0
        totals[place] += np.int64(counted)


@compiled(set())
def write_sparse(totals: Any, pos_inf: int, neg_inf: int, out: Any) -> None:
    """Write the bins that hold elements to `out`, (LAST + 2, 3), and their number to its last row.

    `totals` are 0 afterwards.
    """
    n = 0
    for place in range(LAST + 1):
        positive, negative = totals[place], totals[place + BINS]
        if place == LAST:
            positive -= pos_inf
            negative -= neg_inf
        if positive or negative:
            out[n, 0] = place + LOWEST_EXPONENT
            out[n, 1] = positive
            out[n, 2] = negative
            n += 1
    totals[:] = 0
    out[LAST + 1, 0] = n
