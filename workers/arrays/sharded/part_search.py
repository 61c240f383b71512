"""Whether a tensor is a part of another one: all of it, or one of the equal shares of an axis."""

from __future__ import annotations

import math

from workers.arrays.sharded.agreement import Agreement
from workers.arrays.sharded.assembly import Assembly, AxisSegment, Elements, Joined, Piece, Shape

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
