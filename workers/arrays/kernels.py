"""Compiled loops over the elements of a tensor.

Several simple loops over a block that stays in the L1 cache: each does one thing, so the compiler can turn it
into vector instructions, and together they are faster than one loop that does everything.

Compiled by numba on first use, or by `warm_up`, in six seconds, and cached; see `workers.arrays.kernel_cache`. The
last bits of sums depend on the processor that they are compiled for, whose vector length decides their order;
extremes and counts do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from workers.arrays import kernel_cache

Function = TypeVar("Function", bound=Callable[..., Any])

#: Elements per block: 16 KiB of float32, half of an L1 data cache.
BLOCK: Final = 4096
#: Beyond these, float64 elements have squares that are infinite, or those of their differences vanish: their
#: moments are kept in a unit that is a power of two, so that nothing is rounded.
_MANY: Final = 2.0**480
_FEW: Final = 2.0**-300
_HUGE_UNIT: Final = 2.0**600
_TINY_UNIT: Final = 2.0**-600
#: Below this part of the squares of distances from one element, the squares of deviations from the mean would
#: lose more than three digits of sixteen as a difference: they are added up themselves.
_CANCELLED: Final = 1e-3

#: Places in the state that the functions here keep, float64: the first seven are `statistics.COUNT_FIELDS`;
#: then the number of finite elements, their extremes, and, in `UNIT` and its square, the distance of the mean
#: from `ORIGIN` and the sum of squared deviations. The origin is the first element: means of blocks that
#: differ in their last digits only would be rounded more than they differ.
COUNT, NAN, POS_INF, NEG_INF, ZERO, NEGATIVE, POSITIVE, FINITE, MIN, MAX, MEAN, M2, UNIT, ORIGIN = range(14)

#: Sums may be reordered, which is what vector instructions do; NaN and infinities keep their meaning.
_REORDER: Final = {"reassoc", "contract", "nsz"}

kernel_cache.use_target()


def compiled(fastmath: set[str]) -> Callable[[Function], Function]:
    """Return what compiles a loop, or loads it from the cache, with these liberties in arithmetic."""
    return lambda function: kernel_cache.compiled(function, fastmath)


def new_state() -> npt.NDArray[np.float64]:
    """Return the state of a tensor of which nothing has been taken in."""
    state = np.zeros(14)
    state[MIN], state[MAX], state[UNIT] = math.inf, -math.inf, 1.0
    return state


def accumulate(values: npt.NDArray[Any], state: npt.NDArray[np.float64]) -> None:
    """Take elements into `state`.

    Args:
        values: 1-D and contiguous, float32, float64, or integers of 16 to 64 bits, in native byte order.
        state: from `new_state`.
    """
    if values.dtype.kind == "f":
        _accumulate_floats(values, *_BITS_LIKE[values.dtype.itemsize], state)
    else:
        _accumulate_integers(values, _COUNT_LIKE[values.dtype.itemsize], state)


def accumulate_codes(
    codes: npt.NDArray[np.uint8], values: npt.NDArray[np.float64], state: npt.NDArray[np.float64]
) -> None:
    """Take elements of one byte into `state`.

    Args:
        codes: 1-D and contiguous, the bytes of the elements.
        values: what each of the 256 bytes means; also NaN and infinities. Squares of differences are finite.
        state: from `new_state`.
    """
    _accumulate_codes(codes, values, state)


def widen_half(half: npt.NDArray[np.float16], out: npt.NDArray[np.float32]) -> None:
    """Write elements of float16 to `out` as float32, without loss: five times as fast as numpy does it."""
    _widen_half(half.view(np.uint16), out, out.view(np.int32))


#: Empty arrays, which tell the compiler the types of bits: signed and unsigned integers as wide as a float.
_BITS_LIKE = {
    4: (np.empty(0, np.int32), np.empty(0, np.uint32)),
    8: (np.empty(0, np.int64), np.empty(0, np.uint64)),
}
#: The same for what counts integers: as wide as they are, if a block can be counted in it.
_COUNT_LIKE = {
    2: np.empty(0, np.int16),
    4: np.empty(0, np.int32),
    8: np.empty(0, np.int64),
}


def warm_up() -> None:
    """Compile, or load from the cache, every function for every type of element."""
    for code in ("f4", "f8", "i2", "u2", "i4", "u4", "i8", "u8"):
        accumulate(np.zeros(1, code), new_state())
    accumulate_codes(np.zeros(1, np.uint8), np.zeros(256), new_state())
    widen_half(np.zeros(1, np.float16), np.zeros(1, np.float32))


@compiled(_REORDER)
def _find_extremes(signed: Any, unsigned: Any, extremes: Any) -> None:
    """Write the bits of the smallest and the largest of some floats to `extremes`, from their bits.

    Where some are not finite, at least one of the two is not. (Integers, for minima of floats are not turned
    into vector instructions. Bits of floats of one sign order by magnitude, and a sign makes them negative or
    large.)
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
    # Counted in integers as wide as the elements, so that all lanes have one width: exact up to 4096.
    count = like.dtype.type
    negative, null = count(0), count(0)
    for i in range(x.size):
        negative = count(negative + count(x[i] < 0))
        null = count(null + count(x[i] == 0))
    return negative, null


@compiled(_REORDER)
def _moments(x: Any) -> Any:
    # The mean as its distance from the first element, so that equal elements have exactly themselves for it.
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
    """Join the moments of a block by Chan's formula; its mean is counted from `first`."""
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
    """Choose the unit for the elements so far; it never shrinks, for the largest one decides."""
    largest = max(abs(state[MIN]), abs(state[MAX]))
    unit = 1.0
    if largest > _MANY:
        unit = _HUGE_UNIT
    elif 0 < largest < _FEW:
        unit = _TINY_UNIT
    if unit != state[UNIT]:
        ratio = state[UNIT] / unit
        state[MEAN] *= ratio
        state[ORIGIN] *= ratio
        state[M2] = state[M2] * ratio * ratio
        state[UNIT] = unit


@compiled(set())
def _set_apart(x: Any) -> Any:
    """Return a copy of what is finite, and the counts of NaN, +Inf and -Inf."""
    finite = np.empty(x.size, x.dtype)
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
    return finite[:n], nan, pos_inf, neg_inf


@compiled(set())
def _accumulate_floats(x: Any, signed_like: Any, unsigned_like: Any, state: Any) -> None:
    signed, unsigned = signed_like.dtype, unsigned_like.dtype
    extremes = np.empty(2, x.dtype)
    extreme_bits = extremes.view(unsigned)
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        _find_extremes(block.view(signed), block.view(unsigned), extreme_bits)
        if not (math.isfinite(extremes[0]) and math.isfinite(extremes[1])):
            block, nan, pos_inf, neg_inf = _set_apart(block)
            state[COUNT] += nan + pos_inf + neg_inf
            state[NAN] += nan
            state[POS_INF] += pos_inf
            state[NEG_INF] += neg_inf
            state[POSITIVE] += pos_inf
            state[NEGATIVE] += neg_inf
            if block.size == 0:
                continue
            _find_extremes(block.view(signed), block.view(unsigned), extreme_bits)
        negative, null = _signs(block, signed_like)
        state[COUNT] += block.size
        state[ZERO] += null
        state[NEGATIVE] += negative
        state[POSITIVE] += block.size - null - negative
        state[MIN] = min(state[MIN], np.float64(extremes[0]))
        state[MAX] = max(state[MAX], np.float64(extremes[1]))
        _choose_unit(state)
        if state[UNIT] == 1:
            first, mean, m2 = _moments(block)
        else:
            first, mean, m2 = _moments(block / state[UNIT])
        _merge(state, block.size, first, mean, m2)


@compiled(_REORDER)
def _accumulate_integers(x: Any, like: Any, state: Any) -> None:
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        low, high = block[0], block[0]
        for i in range(block.size):
            low = min(low, block[i])
            high = max(high, block[i])
        negative, null = _signs(block, like)
        first, mean, m2 = _moments(block)
        state[COUNT] += block.size
        state[ZERO] += null
        state[NEGATIVE] += negative
        state[POSITIVE] += block.size - null - negative
        state[MIN] = min(state[MIN], np.float64(low))
        state[MAX] = max(state[MAX], np.float64(high))
        _merge(state, block.size, first, mean, m2)


@compiled(set())
def _widen_half(half: Any, out: Any, bits: Any) -> None:
    # First a power of two with the sign, or Inf or NaN; then times the mantissa, an integer of 11 bits.
    # Nothing on the way is subnormal in float32: some libraries have processors take that for zero.
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
def _accumulate_codes(x: Any, values: Any, state: Any) -> None:
    # Four tables, so that equal neighbours do not wait for one another.
    tables = np.zeros((4, 256), np.int64)
    whole = x.size - x.size % 4
    for i in range(0, whole, 4):
        tables[0, x[i]] += 1
        tables[1, x[i + 1]] += 1
        tables[2, x[i + 2]] += 1
        tables[3, x[i + 3]] += 1
    for i in range(whole, x.size):
        tables[0, x[i]] += 1
    finite, total = 0, 0.0
    for code in range(256):
        n = tables[0, code] + tables[1, code] + tables[2, code] + tables[3, code]
        tables[0, code] = n
        if n == 0:
            continue
        value = values[code]
        if math.isnan(value):
            state[NAN] += n
            continue
        state[ZERO] += n if value == 0 else 0
        state[NEGATIVE] += n if value < 0 else 0
        state[POSITIVE] += n if value > 0 else 0
        if math.isinf(value):
            state[POS_INF if value > 0 else NEG_INF] += n
            continue
        state[MIN] = min(state[MIN], value)
        state[MAX] = max(state[MAX], value)
        finite += n
        total += n * value
    state[COUNT] += x.size
    if finite == 0:
        return
    mean = total / finite
    m2 = 0.0
    for code in range(256):
        n, value = tables[0, code], values[code]
        if n and math.isfinite(value):
            m2 += n * (value - mean) * (value - mean)
    _merge(state, finite, mean, 0.0, m2)
