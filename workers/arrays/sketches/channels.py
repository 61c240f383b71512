"""Which positions along an axis of a tensor stand out, are dead, or are saturated: from its marginals.

A position stands out if its measure, the largest magnitude or the L2 norm, is more than a factor times the
median of that measure over the positions that are not dead. It is dead if all of its finite elements are
zero, and saturated if all of its elements have nearly the same magnitude: as units behind a sigmoid or a tanh
have where the function is flat. Largest magnitudes are exact (see `workers.arrays.sketches.marginals`); norms
are rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from workers.arrays.sketches.marginals import Marginal

#: What positions are compared by.
ABS_MAX, L2_NORM = MEASURES = ("abs_max", "l2_norm")
DEFAULT_FACTOR: Final = 10.0
#: With fewer positions that are not dead, a median says little.
LEAST_POSITIONS: Final = 8
#: With fewer elements, equal magnitudes say little.
LEAST_ELEMENTS: Final = 16
#: A position is saturated if its root mean square is at least this share of its largest magnitude.
_SATURATED = 0.999
#: The range of float32 in which numbers are rounded by a share of themselves.
_SMALLEST_NORMAL, _LARGEST = 2.0**-126, float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """What is odd among the positions of one axis."""

    values: npt.NDArray[np.float64]
    """(position,): what they are compared by."""
    median: float
    """Of those that are not dead; NaN if there are fewer than `LEAST_POSITIONS`."""
    outlying: npt.NDArray[np.int64]
    """The positions that stand out, in order."""
    dead: npt.NDArray[np.int64]
    """In order."""
    saturated: npt.NDArray[np.int64]
    """In order; none if all positions are."""


def channels_of(
    marginal: Marginal, elements: int, *, by: str = ABS_MAX, factor: float = DEFAULT_FACTOR
) -> Channels:
    """Return the odd positions along an axis.

    Args:
        marginal: the marginal of the axis.
        elements: how many elements each position has.
        by: one of `MEASURES`.
        factor: how many times the median an outlier exceeds.
    """
    values = (marginal.abs_max if by == ABS_MAX else marginal.l2_norm).astype(np.float64)
    is_alive = marginal.abs_max > 0
    alive = int(is_alive.sum())
    median = float(np.median(values[is_alive])) if alive >= LEAST_POSITIONS else float("nan")
    with np.errstate(invalid="ignore"):
        outlying = np.flatnonzero(values > factor * median)
    nothing = np.zeros(0, np.int64)
    dead = np.flatnonzero(~is_alive) if is_alive.size >= LEAST_POSITIONS else nothing
    saturated = nothing
    if elements >= LEAST_ELEMENTS and is_alive.size >= LEAST_POSITIONS:
        largest = marginal.abs_max.astype(np.float64)
        root_mean_square = marginal.l2_norm / np.sqrt(elements)
        mask = is_alive & (root_mean_square >= _SATURATED * largest)
        saturated = nothing if mask.all() else np.flatnonzero(mask)
    return Channels(values, median, outlying, dead, saturated)


def relative_error(measure: str, value: float, elements: int, *, is_rounded: bool) -> float:
    """Return how far a measure of a position may be from the truth, as a share of it; 0 if it is exact.

    Magnitudes are exact unless float32 rounds them, by 2**-24 at most. A norm is rounded, too, and comes
    from a sum of squares in float64, in any order, whose error is at most `elements * 2**-53` of it. At the
    ends of the range of float32, where marginals are cut off, nothing is known: infinity.

    Args:
        measure: one of `MEASURES`.
        value: the measure.
        elements: how many elements the position has.
        is_rounded: whether elements of this type are wider than float32.
    """
    if measure == ABS_MAX and not is_rounded:
        return 0.0
    if not _SMALLEST_NORMAL <= value < _LARGEST:
        return math.inf
    return 2.0**-24 + (elements * 2.0**-53 if measure == L2_NORM else 0.0)
