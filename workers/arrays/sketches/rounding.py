"""What a cast to another format would lose of a tensor, from its histogram alone.

A scale multiplies elements before the cast. Counts are exact if bounds fall between two bins. For
underflow, they do if the scale is a power of two; for overflow, if nothing overflows. Otherwise, a count lies
between two numbers that differ by the elements of one bin.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from workers.arrays.number_formats import NumberFormat
from workers.arrays.sketches.histogram import Bounds, Histogram

#: The least scale that is assumed of a block: what is smaller has no inverse in float64.
LEAST_UNIT = sys.float_info.min


@dataclass(frozen=True, slots=True)
class Losses:
    """How many elements a cast loses."""

    overflow: Bounds
    """Finite elements that become infinite or NaN, or are cut off."""
    underflow: Bounds
    """Elements other than zero that become zero."""

    @property
    def is_exact(self) -> bool:
        """Whether both are known exactly."""
        return self.overflow.is_exact and self.underflow.is_exact


def losses(histogram: Histogram, target: NumberFormat, scale: float = 1.0) -> Losses:
    """Return the losses of a cast of a tensor to `target`.

    In a format with blocks, each block has a scale of its own, by which its largest magnitude is the largest
    of the format or less: nothing overflows. No block has a larger one than the tensor has, which bounds
    underflow from above; `scale` does not matter.
    """
    if target.block:
        return Losses(Bounds(0, 0), Bounds(0, _blocks_underflow(histogram, target)))
    kept = histogram.at_most(target.limit / scale)
    overflow = Bounds(histogram.nonzero - kept.high, histogram.nonzero - kept.low)
    return Losses(overflow, histogram.at_most(target.vanishing / scale))


def _blocks_underflow(histogram: Histogram, target: NumberFormat) -> float:
    if not histogram.largest:
        return 0
    unit = max(histogram.largest / target.largest, LEAST_UNIT)
    if target.has_power_scales:
        unit = 1 / power_below(1 / unit)
    return histogram.at_most(target.vanishing * unit).high


def scale_for(largest: float, target: NumberFormat, *, powers_of_two: bool) -> float:
    """Return the scale by which a magnitude becomes the largest of a format; 1 if it is 0.

    Args:
        largest: the magnitude.
        target: the format.
        powers_of_two: whether scales are powers of two, rounded down.
    """
    if not largest:
        return 1.0
    scale = target.largest / largest
    if math.isinf(scale):
        return math.ldexp(1.0, 1023)
    return power_below(scale) if powers_of_two else scale


def power_below(number: float) -> float:
    """Return the largest power of two that is not above a positive number."""
    return math.ldexp(1.0, math.frexp(number)[1] - 1)
