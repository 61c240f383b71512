"""How far two arrays are apart, relative to the second; made to be added up over ranges of large tensors.

Whether a tensor is a part of another one: all of it, or one of the equal shares of an axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workers.arrays.sharded.assembly import (
    Array,
    Assembly,
    AxisSegment,
    Elements,
    Joined,
    Piece,
    Shape,
    widened,
)


@dataclass(slots=True)
class Agreement:
    """The distance of A from its reference B, over the ranges that were added so far."""

    distance: float = 0.0
    """The sum of |a - b|^2 over elements that are finite in both."""
    norm: float = 0.0
    """The sum of |b|^2 over these."""
    product: float = 0.0
    """The sum of the real part of a times the conjugate of b over these."""
    mismatches: int = 0
    """Elements that are NaN or infinite in only one of the two, or not the same infinity."""
    count: int = 0

    def add(self, a: Array, b: Array) -> None:
        """Add a range of both: 1-D arrays of one length."""
        x, y = widened(a), widened(b)
        self.count += x.size
        with np.errstate(all="ignore"):
            finite = np.isfinite(x) & np.isfinite(y)
            if not finite.all():
                odd = ~finite
                same = (x[odd] == y[odd]) | (np.isnan(x[odd]) & np.isnan(y[odd]))
                self.mismatches += int(odd.sum() - same.sum())
                x, y = x[finite], y[finite]
            difference = x - y
            self.distance += float(np.vdot(difference, difference).real)
            self.norm += float(np.vdot(y, y).real)
            self.product += float(np.vdot(y, x).real)

    @property
    def error(self) -> float:
        """|a - b| / |b|: 0 if nothing differs, infinite if only b is all zeros or NaN mismatch."""
        if self.mismatches:
            return math.inf
        if self.distance == 0.0:
            return 0.0
        error = math.sqrt(self.distance / self.norm) if self.norm else math.inf
        return math.inf if math.isnan(error) else error

    @property
    def factor(self) -> float:
        """The number by which b has to be multiplied to be closest to a; NaN if b is all zeros."""
        return self.product / self.norm if self.norm else math.nan

    @property
    def error_besides_factor(self) -> float:
        """The part of A that is not a multiple of B, relative to A: the same for sums and means of pieces."""
        norm_a = self.distance + 2 * self.product - self.norm
        if self.mismatches or not self.norm or norm_a <= 0.0:
            return self.error
        rest = 1.0 - self.product * self.product / (self.norm * norm_a)
        return math.sqrt(max(rest, 0.0))


#: The most elements that are looked at.
_LOOKED_AT = 64 * 1024


def part_error(part: Elements, shape: Shape, whole: Elements, whole_shape: Shape) -> float:
    """Return how far a tensor is from the closest part of another one; infinite if shapes rule that out."""
    errors = [math.inf]
    for candidate in _parts(shape, whole_shape):
        agreement = Agreement()
        stop = min(math.prod(shape), _LOOKED_AT)
        agreement.add(part.read(0, stop), candidate.read([whole], 0, stop))
        errors.append(agreement.error)
    return min(errors)


def _parts(shape: Shape, whole: Shape) -> list[Assembly]:
    if shape == whole:
        return [Piece(0, whole)]
    if len(shape) != len(whole):
        return []
    cut = [axis for axis, (own, all_of_it) in enumerate(zip(shape, whole, strict=True)) if own != all_of_it]
    if len(cut) != 1 or not shape[cut[0]] or whole[cut[0]] % shape[cut[0]]:
        return []
    axis, length = cut[0], shape[cut[0]]
    begins = range(0, whole[axis], length)
    return [Joined((Piece(0, whole),), axis, (AxisSegment(0, begin, length),)) for begin in begins]
