"""Finds where the positions of an axis of pieces lie in a whole tensor, by what they hold.

A few elements at each position are its profile. A position of a piece is that of the whole with the closest
profile, if it is close; positions that follow each other make a stretch. Of equal positions, such as those of
a token that occurs several times, the one is taken that makes the longest stretch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from workers.arrays.sharded.assembly import AxisSegment, Elements, Shape, widened

#: Places on the axes before and behind whose elements make a profile.
_SAMPLES = 8
#: Elements that are read at once.
_BLOCK = 1024 * 1024
#: How far two profiles of one position may be apart, relative to their norm.
_CLOSE = 0.05
#: Neighbours in the order of a random projection that are looked at.
_NEIGHBOURS = 6
#: More stretches than this, for each piece, are not an order, unless their mean length is `_LENGTH`.
_MAX_STRETCHES = 16
#: Sequences are longer, and values that match by chance do not follow one another.
_LENGTH = 8
#: The share of the positions of a piece that have to be found.
_SHARE = 0.9
#: How many of several equal positions are tried as the beginning of a stretch, and how far each at first.
_CANDIDATES, _WINDOW = 16, 256


class Stretch(NamedTuple):
    """Positions of a piece that lie one after the other in the whole."""

    begin: int
    """In the piece."""
    whole: int
    """In the whole."""
    length: int


@dataclass(frozen=True, slots=True)
class MatchedOrder:
    """Where the positions of each piece lie in the whole, along one axis."""

    axis: int
    stretches: tuple[tuple[Stretch, ...], ...]
    """By piece."""
    is_clear: bool = True
    """Whether no two positions of the whole are equal."""
    of: str = "piece"
    """What the numbers of the pieces count: `piece`, or a dimension of the mesh such as `tp`."""

    def segments(self, length: int) -> list[AxisSegment]:
        """Return the stretches in the order of the whole; none unless they make it up without gaps."""
        ordered = sorted(
            (stretch.whole, AxisSegment(part, stretch.begin, stretch.length))
            for part, stretches in enumerate(self.stretches)
            for stretch in stretches
        )
        position = 0
        for begin, segment in ordered:
            if begin != position:
                return []
            position += segment.length
        return [segment for _, segment in ordered] if position == length else []


def match_order(
    pieces: Sequence[Elements],
    shapes: Sequence[Shape],
    whole: Elements,
    shape: Shape,
    axis: int,
    *,
    box: Shape | None = None,
) -> MatchedOrder | None:
    """Return where the positions of pieces lie along an axis of the whole; None if that is not clear.

    Args:
        pieces: the elements of each piece.
        shapes: their shapes, which differ from that of the whole along the axis alone.
        whole: the elements of the whole.
        shape: its shape.
        axis: the axis along which they lie.
        box: how much of each other axis the pieces and the whole have alike; default: all of it.
    """
    box = box or shape
    distinct, contents = np.unique(_profile(whole, shape, axis, box), axis=0, return_inverse=True)
    if len(distinct) == 1:
        return None
    places = _EqualPlaces.of(contents.reshape(-1))
    by_piece = []
    for piece, own_shape in zip(pieces, shapes, strict=True):
        most = max(_MAX_STRETCHES, own_shape[axis] // _LENGTH)
        stretches = places.take(_nearest(_profile(piece, own_shape, axis, box), distinct), most)
        covered = sum(stretch.length for stretch in stretches)
        if len(stretches) > most or covered < _SHARE * own_shape[axis]:
            return None
        by_piece.append(tuple(stretches))
    return MatchedOrder(axis, tuple(by_piece), len(distinct) == shape[axis])


@dataclass(frozen=True, slots=True, eq=False)
class _EqualPlaces:
    """The positions of the whole by their content. Each is taken once, if there are enough."""

    contents: npt.NDArray[np.int64]
    """(position,): the number of its content."""
    order: npt.NDArray[np.int64]
    """Positions sorted by content, those of one content in order."""
    bounds: npt.NDArray[np.int64]
    """Where the positions of each content begin in `order`, and where the last ends."""
    is_free: npt.NDArray[np.bool_]
    """(position,): whether no piece has it yet."""

    @classmethod
    def of(cls, contents: npt.NDArray[np.int64]) -> Self:
        bounds = np.concatenate([[0], np.cumsum(np.bincount(contents))])
        return cls(contents, np.argsort(contents, kind="stable"), bounds, np.ones(len(contents), bool))

    def take(self, contents: npt.NDArray[np.int64], most: int) -> list[Stretch]:
        """Take the stretches that a piece with these contents has; -1 is one that the whole does not have.

        No more are looked for after `most` stretches.
        """
        stretches: list[Stretch] = []
        begin = 0
        while begin < len(contents) and len(stretches) <= most:
            runs = [
                (self._run(contents[begin:], place), -place) for place in self._candidates(contents[begin])
            ]
            length, place = max(runs, default=(1, 0))
            if runs:
                stretches.append(Stretch(begin, -place, length))
                self.is_free[-place : length - place] = False
            begin += length
        return stretches

    def _candidates(self, content: int) -> list[int]:
        """Return some positions with this content, those that no piece has yet if there are any."""
        if content < 0:
            return []
        equal = self.order[self.bounds[content] : self.bounds[content + 1]]
        free = equal[self.is_free[equal]]
        chosen: list[int] = (free if len(free) else equal)[:_CANDIDATES].tolist()
        return chosen

    def _run(self, contents: npt.NDArray[np.int64], place: int) -> int:
        """Return how many positions from a place on have these contents, and are as free as the first is."""
        for window in (_WINDOW, len(contents)):
            own, of_whole = contents[:window], self.contents[place : place + window]
            length = min(len(own), len(of_whole))
            is_other = own[:length] != of_whole[:length]
            is_other |= self.is_free[place : place + length] != self.is_free[place]
            if is_other.any():
                return int(is_other.argmax())
        return length


def _profile(elements: Elements, shape: Shape, axis: int, box: Shape) -> npt.NDArray[np.float64]:
    """Return some elements at each position of an axis, (position, sample), float64.

    Of complex elements, these are the real parts. NaN and Inf are 0.
    """
    length, inner = shape[axis], math.prod(shape[axis + 1 :])
    if not math.prod(shape):
        return np.zeros((length, 1))
    columns = _places(shape[axis + 1 :], box[axis + 1 :])
    rows = []
    for place in _places(shape[:axis], box[:axis]).tolist():
        step = max(_BLOCK // inner, 1)
        parts = []
        for begin in range(0, length, step):
            end = min(begin + step, length)
            base = place * length
            values = elements.read((base + begin) * inner, (base + end) * inner)
            parts.append(widened(values.reshape(end - begin, inner)[:, columns]).real)
        rows.append(np.concatenate(parts))
    profile = np.concatenate(rows, axis=1)
    return np.where(np.isfinite(profile), profile, 0.0)


def _places(lengths: Shape, box: Shape) -> npt.NDArray[np.int64]:
    """Return some places on axes of these lengths, spread over a box at their beginning, as flat indices."""
    if not lengths:
        return np.zeros(1, np.int64)
    chosen = np.unique(np.linspace(0, math.prod(box) - 1, _SAMPLES).astype(int))
    return np.ravel_multi_index(np.unravel_index(chosen, box), lengths)


def _nearest(profile: npt.NDArray[np.float64], of_whole: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the closest row of the whole for each position of a piece, (position,); -1 if none is close."""
    direction = np.random.default_rng(0).normal(size=of_whole.shape[1])
    keys = of_whole @ direction
    order = np.argsort(keys)
    middle = np.searchsorted(keys[order], profile @ direction)
    best = np.full(len(profile), -1)
    distance = np.full(len(profile), np.inf)
    for offset in range(-_NEIGHBOURS, _NEIGHBOURS):
        candidates = order[np.clip(middle + offset, 0, len(order) - 1)]
        apart = np.linalg.norm(profile - of_whole[candidates], axis=1)
        closer = apart < distance
        best[closer], distance[closer] = candidates[closer], apart[closer]
    limit = _CLOSE * np.linalg.norm(profile, axis=1)
    return np.where(distance <= limit, best, -1)
