"""Compiled loops over the elements of a tensor.

Several simple loops over a block that stays in the L1 cache: each does one thing, so the compiler can turn it
into vector instructions, and together they are faster than one loop that does everything.

Compiled by numba on first use, or by `warm_up`, in six seconds, and cached; see `workers.kernel_cache`. The
last bits of sums depend on the processor that they are compiled for, whose vector length decides their order;
extremes and counts do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from workers import kernel_cache

Function = TypeVar("Function", bound=Callable[..., Any])

#: Elements per block: 16 KiB of float32, half of an L1 data cache.
BLOCK: Final = 4096
#: Beyond these, float64 elements have squares that are infinite or vanish: their moments are kept in a unit
#: that is a power of two, so that nothing is rounded.
_MANY: Final = 2.0**480
_FEW: Final = 2.0**-480
_HUGE_UNIT: Final = 2.0**600
_TINY_UNIT: Final = 2.0**-600

#: Places in the state that the functions here keep, float64: the first seven are `statistics.COUNT_FIELDS`;
#: then the number of finite elements, their extremes, and, in `UNIT` and its square, mean and sum of squared
#: deviations.
COUNT, NAN, POS_INF, NEG_INF, ZERO, NEGATIVE, POSITIVE, FINITE, MIN, MAX, MEAN, M2, UNIT = range(13)

#: Sums may be reordered, which is what vector instructions do; NaN and infinities keep their meaning.
_REORDER: Final = {"reassoc", "contract", "nsz"}

kernel_cache.use_target()


def compiled(fastmath: set[str]) -> Callable[[Function], Function]:
    """Return what compiles a loop, or loads it from the cache, with these liberties in arithmetic."""
    return lambda function: kernel_cache.compiled(function, fastmath)


def new_state() -> npt.NDArray[np.float64]:
    """Return the state of a tensor of which nothing has been taken in."""
    state = np.zeros(13)
    state[MIN], state[MAX], state[UNIT] = math.inf, -math.inf, 1.0
    return state


def accumulate(values: npt.NDArray[Any], state: npt.NDArray[np.float64], scratch: npt.NDArray[Any]) -> None:
    """Take elements into `state`.

    Args:
        values: 1-D and contiguous, float32, float64, or integers of 16 to 64 bits, in native byte order.
        state: from `new_state`.
        scratch: at least `BLOCK` elements of the type of `values`; overwritten.
    """
    if values.dtype.kind == "f":
        bits, shift, mask, infinity = _FLOATS[values.dtype.itemsize]
        one = values.dtype.type(1)
        _accumulate_floats(values, values.view(bits), shift, mask, infinity, one, state, scratch)
    else:
        _accumulate_integers(values, state)


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


_FLOATS = {
    4: (np.int32, np.int32(31), np.int32(0x7FFF_FFFF), np.int32(0x7F80_0000)),
    8: (np.int64, np.int64(63), np.int64(0x7FFF_FFFF_FFFF_FFFF), np.int64(0x7FF0_0000_0000_0000)),
}


def warm_up() -> None:
    """Compile, or load from the cache, every function for every type of element."""
    for code in ("f4", "f8", "i2", "u2", "i4", "u4", "i8", "u8"):
        accumulate(np.zeros(1, code), new_state(), np.zeros(BLOCK, code))
    accumulate_codes(np.zeros(1, np.uint8), np.zeros(256), new_state())


@compiled(_REORDER)
def _extreme_keys(bits: Any, shift: Any, mask: Any) -> Any:
    # Bits as signed integers order like the floats once those of negative ones are turned round; beyond the
    # keys of the infinities are those of NaN. (Minima of floats are not turned into vector instructions.)
    low = bits[0] ^ ((bits[0] >> shift) & mask)
    high = low
    for i in range(bits.size):
        low = min(low, bits[i] ^ ((bits[i] >> shift) & mask))
    for i in range(bits.size):
        high = max(high, bits[i] ^ ((bits[i] >> shift) & mask))
    return low, high


@compiled(_REORDER)
def _signs(x: Any, one: Any) -> Any:
    # Counted in the type of the elements, so that all lanes have one width: exact up to 4096.
    zero = one - one
    negative = zero
    for i in range(x.size):
        negative += one if x[i] < zero else zero
    null = zero
    for i in range(x.size):
        null += one if x[i] == zero else zero
    return negative, null


@compiled(_REORDER)
def _moments(x: Any) -> Any:
    # From the first element on, so that equal elements have exactly themselves for their mean.
    first = np.float64(x[0])
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) - first
    mean = first + total / x.size
    m2 = 0.0
    for i in range(x.size):
        deviation = np.float64(x[i]) - mean
        m2 += deviation * deviation
    return mean, m2


@compiled(set())
def _merge(state: Any, n: Any, mean: Any, m2: Any) -> None:
    """Join the moments of a block by Chan's formula; see `workers.statistics`."""
    before = state[FINITE]
    total = before + n
    delta = mean - state[MEAN]
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
        state[M2] = state[M2] * ratio * ratio
        state[UNIT] = unit


@compiled(set())
def _set_apart(x: Any, scratch: Any) -> Any:
    """Copy what is finite to `scratch`; return how many that are, and the counts of NaN, +Inf and -Inf."""
    n, nan, pos_inf, neg_inf = 0, 0, 0, 0
    for i in range(x.size):
        value = x[i]
        if math.isfinite(value):
            scratch[n] = value
            n += 1
        elif math.isnan(value):
            nan += 1
        elif value > 0:
            pos_inf += 1
        else:
            neg_inf += 1
    return n, nan, pos_inf, neg_inf


@compiled(set())
def _accumulate_floats(  # noqa: PLR0917  (compiled functions have no keywords)
    x: Any, bits: Any, shift: Any, mask: Any, infinity: Any, one: Any, state: Any, scratch: Any
) -> None:
    scratch_bits = scratch.view(bits.dtype)
    extremes = np.empty(2, x.dtype)
    extreme_bits = extremes.view(bits.dtype)
    key_of_minus_infinity = -infinity - (mask // mask)
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        low, high = _extreme_keys(bits[start : start + BLOCK], shift, mask)
        nan, pos_inf, neg_inf = 0, 0, 0
        if low <= key_of_minus_infinity or high >= infinity:
            n, nan, pos_inf, neg_inf = _set_apart(block, scratch)
            block = scratch[:n]
            if n:
                low, high = _extreme_keys(scratch_bits[:n], shift, mask)
        if block.size:
            extreme_bits[0] = low ^ ((low >> shift) & mask)
            extreme_bits[1] = high ^ ((high >> shift) & mask)
            negative, null = _signs(block, one)
            state[ZERO] += null
            state[NEGATIVE] += negative
            state[POSITIVE] += block.size - null - negative
            state[MIN] = min(state[MIN], np.float64(extremes[0]))
            state[MAX] = max(state[MAX], np.float64(extremes[1]))
            _choose_unit(state)
            if state[UNIT] == 1:
                mean, m2 = _moments(block)
            else:
                for i in range(block.size):
                    scratch[i] = block[i] / state[UNIT]
                mean, m2 = _moments(scratch[: block.size])
            _merge(state, block.size, mean, m2)
        state[COUNT] += block.size + nan + pos_inf + neg_inf
        state[NAN] += nan
        state[POS_INF] += pos_inf
        state[NEG_INF] += neg_inf
        state[POSITIVE] += pos_inf
        state[NEGATIVE] += neg_inf


@compiled(_REORDER)
def _accumulate_integers(x: Any, state: Any) -> None:
    for start in range(0, x.size, BLOCK):
        block = x[start : start + BLOCK]
        low = block[0]
        for i in range(block.size):
            low = min(low, block[i])
        high = block[0]
        for i in range(block.size):
            high = max(high, block[i])
        negative, null = 0, 0
        for i in range(block.size):
            negative += block[i] < 0
        for i in range(block.size):
            null += block[i] == 0
        mean, m2 = _moments(block)
        state[COUNT] += block.size
        state[ZERO] += null
        state[NEGATIVE] += negative
        state[POSITIVE] += block.size - null - negative
        state[MIN] = min(state[MIN], np.float64(low))
        state[MAX] = max(state[MAX], np.float64(high))
        _merge(state, block.size, mean, m2)


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
    _merge(state, finite, mean, m2)
