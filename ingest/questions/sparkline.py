"""Numbers over steps as one line of blocks, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

BARS = "▁▂▃▄▅▆▇█"
GAP = "·"
"""Nothing is there: the rank does not have the step, or not the tensor."""
BAD = "!"
"""Elements are NaN or infinite, or the value is not known for that."""
UNKNOWN = "?"
"""The tensor is there, and nothing is known of its value."""


def sparkline(values: Sequence[float], present: Sequence[bool], bad: Sequence[bool], width: int = 60) -> str:
    """Draw values, from the least to the greatest of them; those that are `bad` are marked.

    Where there are more than `width`, neighbours share a place: that of the greatest; one that is bad marks
    them all.
    """
    count = len(values)
    edges = np.linspace(0, count, min(count, max(width, 1)) + 1).astype(int)
    finite = [value for value, there in zip(values, present, strict=True) if there and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    drawn = []
    for begin, end in pairwise(edges.tolist()):
        there = [place for place in range(begin, end) if present[place]]
        numbers = [values[place] for place in there if math.isfinite(values[place])]
        if not there:
            drawn.append(GAP)
        elif any(bad[place] or math.isinf(values[place]) for place in there):
            drawn.append(BAD)
        elif not numbers:
            drawn.append(UNKNOWN)
        else:
            drawn.append(_bar(max(numbers), low, high))
    return "".join(drawn)


def _bar(value: float, low: float, high: float) -> str:
    # Halved first: the difference of two large numbers is infinite.
    span = high / 2 - low / 2
    if span <= 0:
        return BARS[3]
    share = (value / 2 - low / 2) / span
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
