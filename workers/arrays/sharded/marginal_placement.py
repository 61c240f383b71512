"""How ranks hold a tensor, from marginals alone: replicated, a shard along an axis, or a partial sum.

Sums along an axis are linear: those of partial sums add up to those of the whole, and so do those of shards
along an axis that is not cut; along the cut one, they follow one another. Squares add up over shards, and not
over partial sums. Only axes of which both sides have marginals are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.arrays.sharded.placement import Held
from workers.arrays.sketches.marginals import Marginal

#: A way is accepted if its error is at most the first, and that of every other way this many times larger.
FIT, _TIMES = 1e-3, 8.0
_Sides = Iterator[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]


@dataclass(frozen=True, slots=True)
class MarginalWay:
    """One way in which pieces may make up a tensor, and how far their marginals are apart then."""

    held: Held
    axis: int | None
    """The axis that is cut."""
    error: float
    """|a - b| / |b|, of sums and norms; NaN if no axis can be compared."""

    def __str__(self) -> str:
        return self.held.value if self.axis is None else f"{self.held.value} {self.axis}"


def _are_cut(shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...], axis: int) -> bool:
    """Return whether pieces of these shapes may be those of a tensor that is cut along one axis."""
    others = {(*own[:axis], *own[axis + 1 :]) for own in shapes}
    return (
        others == {(*shape[:axis], *shape[axis + 1 :])}
        and all(len(own) == len(shape) for own in shapes)
        and sum(own[axis] for own in shapes) == shape[axis]
    )


def ways_held(
    pieces: Sequence[Mapping[int, Marginal]],
    shapes: Sequence[tuple[int, ...]],
    whole: Mapping[int, Marginal],
    shape: tuple[int, ...],
) -> list[MarginalWay]:
    """Return the ways that the shapes allow and that can be compared, the closest first.

    Args:
        pieces: by rank, the marginals of its piece, by axis.
        shapes: by rank, the shape of its piece.
        whole: the marginals of the tensor.
        shape: its shape.
    """
    ways = []
    if all(own == shape for own in shapes):
        errors = [_error(_replicated(piece, whole)) for piece in pieces]
        ways += [MarginalWay(Held.REPLICATED, None, max(errors))]
        ways += [MarginalWay(Held.PARTIAL_SUM, None, _error(_summed(pieces, whole)))]
    for axis in range(len(shape)):
        if _are_cut(shapes, shape, axis):
            ways.append(MarginalWay(Held.SHARD, axis, _error(_cut(pieces, whole, axis))))
    return sorted((way for way in ways if not math.isnan(way.error)), key=lambda way: way.error)


def held_as(ways: Sequence[MarginalWay]) -> MarginalWay | None:
    """Return the way that holds, from those of `ways_held`; None if none does, or several do."""
    if not ways or ways[0].error > FIT:
        return None
    if len(ways) > 1 and ways[1].error < max(_TIMES * ways[0].error, 1e-6):
        return None
    return ways[0]


def _replicated(piece: Mapping[int, Marginal], whole: Mapping[int, Marginal]) -> _Sides:
    for axis in piece.keys() & whole.keys():
        yield _wide(piece[axis].sum), _wide(whole[axis].sum)
        yield _wide(piece[axis].l2_norm), _wide(whole[axis].l2_norm)


def _summed(pieces: Sequence[Mapping[int, Marginal]], whole: Mapping[int, Marginal]) -> _Sides:
    for axis in _common(pieces, whole):
        yield np.sum([_wide(piece[axis].sum) for piece in pieces], axis=0), _wide(whole[axis].sum)


def _cut(pieces: Sequence[Mapping[int, Marginal]], whole: Mapping[int, Marginal], cut: int) -> _Sides:
    for axis in _common(pieces, whole):
        if axis == cut:
            yield np.concatenate([piece[axis].sum for piece in pieces]), _wide(whole[axis].sum)
            yield np.concatenate([piece[axis].l2_norm for piece in pieces]), _wide(whole[axis].l2_norm)
        else:
            added = Marginal.added(piece[axis] for piece in pieces)
            yield _wide(added.sum), _wide(whole[axis].sum)
            yield _wide(added.l2_norm), _wide(whole[axis].l2_norm)


def _common(pieces: Sequence[Mapping[int, Marginal]], whole: Mapping[int, Marginal]) -> list[int]:
    return sorted(axis for axis in whole if all(axis in piece for piece in pieces))


def _wide(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    return values.astype(np.float64)


def _error(sides: _Sides) -> float:
    """Return the largest relative distance of pairs of vectors; NaN if there are none."""
    errors = []
    for own, expected in sides:
        scale = float(np.linalg.norm(expected))
        distance = float(np.linalg.norm(own - expected))
        errors.append(distance / scale if scale else (math.inf if distance else 0.0))
    return max(errors, default=math.nan)
