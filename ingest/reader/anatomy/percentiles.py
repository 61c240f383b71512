"""Exact percentiles of any number of elements, in a few passes and bounded memory.

Each pass counts one digit of 16 bits of the keys of all elements: two passes for 32 bits, four for 64. Of the
element with a given rank, each pass so finds the next digit (a radix selection).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.anatomy.order_keys import keys_of, value_of

#: Reads all finite elements once, in pieces of one type that `order_keys.widened` returns.
Pass: TypeAlias = Callable[[], Iterable[npt.NDArray[Any]]]

_DIGIT_BITS = 16
_DIGITS = 1 << _DIGIT_BITS


def percentiles(
    read: Pass, count: int, dtype: np.dtype[Any], percents: Sequence[float]
) -> dict[float, float]:
    """Return percentiles as `numpy.percentile` does, with linear interpolation between two elements.

    Memory: one piece and its keys, and 512 KiB for each of the elements that are looked for: two for each
    percentile.

    Args:
        read: reads all elements; called two or four times.
        count: how many elements there are.
        dtype: their type.
        percents: percentages, 0 to 100.
    """
    if not count or not percents:
        return {}
    places = {percent: percent / 100 * (count - 1) for percent in percents}
    ranks = sorted({rank for place in places.values() for rank in (math.floor(place), math.ceil(place))})
    values = {
        rank: value_of(key, dtype) for rank, key in zip(ranks, _select(read, dtype, ranks), strict=True)
    }
    return {
        percent: _between(values[math.floor(place)], values[math.ceil(place)], place % 1)
        for percent, place in places.items()
    }


def _select(read: Pass, dtype: np.dtype[Any], ranks: Sequence[int]) -> list[int]:
    """Return the keys of the elements with these ranks, from 0, in the order of numbers."""
    bits = 8 * dtype.itemsize
    prefixes, rests = [0] * len(ranks), list(ranks)
    for shift in range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts = _count_digits(read, shift, bits, sorted(set(prefixes)))
        for number, prefix in enumerate(prefixes):
            up_to = np.cumsum(counts[prefix])
            digit = int(np.searchsorted(up_to, rests[number], side="right"))
            rests[number] -= int(up_to[digit - 1]) if digit else 0
            prefixes[number] = prefix << _DIGIT_BITS | digit
    return prefixes


def _count_digits(
    read: Pass, shift: int, bits: int, prefixes: Sequence[int]
) -> dict[int, npt.NDArray[np.int64]]:
    """Return, for each beginning of keys, how many elements have each next digit, (digit,)."""
    counts = {prefix: np.zeros(_DIGITS, np.int64) for prefix in prefixes}
    for piece in read():
        keys = keys_of(piece)
        digits = (keys >> keys.dtype.type(shift)).astype(np.uint64) & np.uint64(_DIGITS - 1)
        if shift + _DIGIT_BITS == bits:
            counts[0] += np.bincount(digits.astype(np.int64), minlength=_DIGITS)
            continue
        above = keys >> keys.dtype.type(shift + _DIGIT_BITS)
        for prefix in prefixes:
            chosen = digits[above == above.dtype.type(prefix)].astype(np.int64)
            counts[prefix] += np.bincount(chosen, minlength=_DIGITS)
    return counts


def _between(low: float, high: float, share: float) -> float:
    """Interpolate without an overflow between numbers of opposite signs."""
    return low if low == high else low * (1 - share) + high * share
