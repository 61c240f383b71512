"""Draw numbers over steps as one line of block characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, isinf

import numpy as np

BARS = "▁▂▃▄▅▆▇█"
GAP = "-"
"""The rank does not have the step, or not the tensor."""
BAD = "!"
"""Elements are NaN or infinite; the value may be unknown for that reason."""
UNKNOWN = "?"
"""The rank has the tensor, but its value is unknown."""


def sparkline(values: Sequence[float], present: Sequence[bool], bad: Sequence[bool], width: int = 60) -> str:
    """Draw values with bars from the least to the greatest of them.

    If there are more values than `width`, neighbours share a character: that of the greatest of them, or
    `BAD` if one of them is bad.

    Args:
        values: the values; NaN for unknown.
        present: whether there is a value at all.
        bad: whether elements are NaN or infinite.
        width: the maximal number of characters.
    """
    count = len(values)
    edges = np.linspace(0, count, min(count, max(width, 1)) + 1).astype(int)
    finite = [value for value, shown in zip(values, present, strict=True) if shown and isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    characters = []
    for begin, end in pairwise(edges.tolist()):
        indexes = [index for index in range(begin, end) if present[index]]
        is_bad = any(bad[index] or isinf(values[index]) for index in indexes)
        characters.append(_character([values[index] for index in indexes], low, high, is_bad=is_bad))
    return "".join(characters)


def _character(values: Sequence[float], low: float, high: float, *, is_bad: bool) -> str:
    """Return the character for neighbours of which these values are present."""
    if not values:
        return GAP
    if is_bad:
        return BAD
    finite = list(filter(isfinite, values))
    return _bar(max(finite), low, high) if finite else UNKNOWN


def _bar(value: float, low: float, high: float) -> str:
    # Halved first, because the difference of two large numbers may be infinite.
    span = high / 2 - low / 2
    if span <= 0:
        return BARS[3]
    share = (value / 2 - low / 2) / span
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
