"""Finds where the positions of an axis of pieces lie in a whole tensor, by what they hold.

A few elements at each position are its profile. A position of a piece is that of the whole with the closest
profile, if it is close; positions that follow each other make a stretch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workers.arrays.sharded.assembly import AxisSegment, Elements, Shape

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
    pieces: Sequence[Elements], shapes: Sequence[Shape], whole: Elements, shape: Shape, axis: int
) -> MatchedOrder | None:
    """Return where the positions of pieces lie along an axis of the whole; None if that is not clear.

    Args:
        pieces: the elements of each piece.
        shapes: their shapes, which differ from that of the whole along the axis alone.
        whole: the elements of the whole.
        shape: its shape.
        axis: the axis along which they lie.
    """
    of_whole = _profile(whole, shape, axis)
    if len(np.unique(of_whole, axis=0)) < len(of_whole):
        return None  # equal positions cannot be told apart
    by_piece = []
    for piece, own_shape in zip(pieces, shapes, strict=True):
        stretches = _stretches(_nearest(_profile(piece, own_shape, axis), of_whole))
        covered = sum(stretch.length for stretch in stretches)
        most = max(_MAX_STRETCHES, own_shape[axis] // _LENGTH)
        if len(stretches) > most or covered < _SHARE * own_shape[axis]:
            return None
        by_piece.append(tuple(stretches))
    return MatchedOrder(axis, tuple(by_piece))


def _profile(elements: Elements, shape: Shape, axis: int) -> npt.NDArray[np.float64]:
    """Return some elements at each position of an axis, (position, sample), float64; NaN and Inf as 0."""
    outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    if not outer * length * inner:
        return np.zeros((length, 1))
    columns = np.unique(np.linspace(0, inner - 1, _SAMPLES).astype(int))
    rows = []
    for place in np.unique(np.linspace(0, outer - 1, _SAMPLES).astype(int)).tolist():
        step = max(_BLOCK // inner, 1)
        parts = []
        for begin in range(0, length, step):
            end = min(begin + step, length)
            base = place * length
            values = elements.read((base + begin) * inner, (base + end) * inner)
            parts.append(values.reshape(end - begin, inner)[:, columns].astype(np.float64))
        rows.append(np.concatenate(parts))
    profile = np.concatenate(rows, axis=1)
    return np.where(np.isfinite(profile), profile, 0.0)


def _nearest(profile: npt.NDArray[np.float64], of_whole: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the closest position of the whole for each of a piece, (position,); -1 if none is close."""
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


def _stretches(positions: npt.NDArray[np.int64]) -> list[Stretch]:
    """Return runs of positions that follow each other, without those that were not found."""
    ends = np.flatnonzero(np.diff(positions) != 1) + 1
    bounds = [0, *ends.tolist(), len(positions)]
    return [
        Stretch(begin, int(positions[begin]), end - begin)
        for begin, end in pairwise(bounds)
        if begin < end and positions[begin] >= 0
    ]
