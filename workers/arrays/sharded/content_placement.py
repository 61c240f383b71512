"""Finds how pieces make up a tensor by what they hold, where no usual way fits.

So blocks of unequal lengths are found, such as queries and fewer keys and values, and packed sequences each
of which is cut in zigzag.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from workers.arrays.sharded.assembly import (
    Array,
    Assembly,
    AxisSegment,
    Elements,
    Joined,
    Piece,
    Shape,
    interleaved,
    zigzag,
)
from workers.arrays.sharded.placement import Dimension, Held, MeshGrid, Placement, assembled, placements
from workers.arrays.sharded.segment_match import MatchedOrder, match_order

#: The most elements of a tensor that is searched.
_MAX_SIZE = 64 * 1024 * 1024
#: Samples are taken from this share of an axis that is cut in a way that is not known yet: each way that is
#: known begins with the beginning of the first piece.
_SHARE = 8


class FoundPlacement(NamedTuple):
    """What the contents of pieces show."""

    order: MatchedOrder | None = None
    """Where the pieces lie along the axis that shows most; None if that is not clear."""
    placement: Placement | None = None
    """None if the order is that of no known way."""


def place_by_content(
    grids: Sequence[MeshGrid],
    shapes: Sequence[Shape],
    elements: Sequence[Elements],
    whole: Elements,
    shape: Shape,
) -> FoundPlacement:
    """Return where positions of cut axes are by content, and the placement if that is regular.

    Args:
        grids: the meshes on which the pieces may lie.
        shapes: of the pieces.
        elements: of the pieces.
        whole: the elements of the tensor.
        shape: its shape.
    """
    found = FoundPlacement()
    if math.prod(shape) > _MAX_SIZE:
        return found
    for grid in grids:
        for way in placements(grid, shapes, shape, repeated=True):
            orders = _orders(_Pieces(grid, shapes, elements), way, _WholeTensor(whole, shape))
            if orders is None:
                continue
            forms = {number: _form(way, number, order) for number, order in orders.items()}
            unknown = [orders[number] for number, form in forms.items() if form is None]
            if not unknown:
                placement = _placed(grid, shapes, way, forms)
                if placement is not None and placement.assembly.shape == shape:
                    return FoundPlacement(next(iter(orders.values())), placement)
            elif found.order is None:
                found = FoundPlacement(unknown[0])
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    grid: MeshGrid
    shapes: Sequence[Shape]
    elements: Sequence[Elements]


@dataclass(frozen=True, slots=True, eq=False)
class _WholeTensor:
    elements: Elements
    shape: Shape


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The elements of a part that is put together from pieces."""

    assembly: Assembly
    pieces: Sequence[Elements]

    def read(self, start: int, stop: int) -> Array:
        return self.assembly.read(self.pieces, start, stop)


def _orders(pieces: _Pieces, way: Placement, whole: _WholeTensor) -> dict[int, MatchedOrder] | None:
    """Return by dimension of the mesh where its parts lie; None unless that is found for each that cuts.

    Of several dimensions that cut one axis, it is that of the outermost one.
    """
    axes = [dimension.axis for dimension in way.dimensions]
    left = [number for number, axis in enumerate(axes) if axis is not None and axis not in axes[:number]]
    orders: dict[int, MatchedOrder] = {}
    while left:
        # What is found of one axis tells how much of it can be used for another one.
        found = {number: _order_along(pieces, way, number, orders, whole) for number in left}
        orders |= {number: order for number, order in found.items() if order is not None}
        if not set(left) & orders.keys():
            return None
        left = [number for number in left if number not in orders]
    return orders or None


def _sampled_box(shape: Shape, cut: Collection[int | None], known: Iterable[MatchedOrder]) -> Shape:
    """Return how much of each axis of a part is sampled.

    Args:
        shape: of the part.
        cut: the other axes that are cut.
        known: what was found of some of them.
    """
    box = [max(own // _SHARE, 1) if axis in cut else own for axis, own in enumerate(shape)]
    for order in known:
        first = order.stretches[0][0]
        box[order.axis] = first.length if (first.begin, first.whole) == (0, 0) else 1
    return tuple(box)


def _order_along(
    pieces: _Pieces, way: Placement, number: int, known: Mapping[int, MatchedOrder], whole: _WholeTensor
) -> MatchedOrder | None:
    """Return where the parts along a dimension of the mesh lie; None if that is not clear."""
    dimension = way.dimensions[number]
    parts = _parts_along(pieces, way.dimensions, number)
    if dimension.axis is None or not parts:
        return None
    shapes = [part.assembly.shape for part in parts]
    cut = {other.axis for other in way.dimensions} - {dimension.axis}
    box = _sampled_box(shapes[0], cut, known.values())
    found = match_order(parts, shapes, whole.elements, whole.shape, dimension.axis, box=box)
    if found is None or len(way.dimensions) == 1:
        return found
    return replace(found, of=dimension.name or "part")


def _parts_along(pieces: _Pieces, dimensions: Sequence[Dimension], number: int) -> list[_Part]:
    """Return the parts along a dimension of the mesh, at the first place of those that cut other axes.

    There are none if the shapes of the pieces do not allow it.
    """
    others = [*dimensions[:number], *dimensions[number + 1 :]]
    numbers = np.moveaxis(pieces.grid.numbers, number, 0)
    for place, other in enumerate(others, 1):
        if other.axis is not None and other.axis != dimensions[number].axis:
            numbers = numbers.take([0], axis=place)
    assemblies = [assembled(part, pieces.shapes, others) for part in numbers]
    parts = [_Part(assembly, pieces.elements) for assembly in assemblies if assembly is not None]
    return parts if len(parts) == len(assemblies) else []


def _placed(
    grid: MeshGrid, shapes: Sequence[Shape], way: Placement, forms: Mapping[int, Dimension | None]
) -> Placement | None:
    """Return the placement with the forms that were found, by dimension of the mesh."""
    dimensions = tuple(forms.get(number) or dimension for number, dimension in enumerate(way.dimensions))
    if dimensions == way.dimensions:
        return None  # that one does not fit
    assembly = assembled(grid.numbers, shapes, dimensions)
    return None if assembly is None else Placement(dimensions, assembly)


def _form(way: Placement, number: int, order: MatchedOrder) -> Dimension | None:
    """Return in which regular way a dimension cuts its axis; None if it is none that is known."""
    dimension = way.dimensions[number]
    segments = order.segments(way.assembly.shape[order.axis])
    if not segments:
        return None
    if segments == [AxisSegment(part, 0, segments[part].length) for part in range(len(segments))]:
        return dimension
    if lengths := _block_lengths(segments, dimension.size):
        return replace(dimension, held=Held.BLOCKS, lengths=lengths)
    if lengths := _sequence_lengths(segments, dimension.size):
        return replace(dimension, held=Held.ZIGZAG, lengths=lengths if len(lengths) > 1 else ())
    return None


def _block_lengths(segments: Sequence[AxisSegment], count: int) -> tuple[int, ...]:
    """Return how long the blocks of each part are; none unless all have the same ones, in the same order."""
    lengths = tuple(segment.length for segment in segments[::count])
    return lengths if _merged(interleaved(_parts(count), 0, lengths)) == segments else ()


def _sequence_lengths(segments: Sequence[AxisSegment], count: int) -> tuple[int, ...]:
    """Return how long the sequences are that are cut in zigzag; none if they are not."""
    # The last chunk of a sequence and the first one of the next are both with the first part, in one segment.
    of_first = [segment.length for segment in segments if segment.part == 0]
    chunks = of_first[:1]
    for length in of_first[1:-1]:
        chunks.append(length - chunks[-1])
    lengths = tuple(2 * count * chunk for chunk in chunks)
    is_whole = bool(chunks) and min(chunks) > 0
    return lengths if is_whole and _merged(zigzag(_parts(count), 0, lengths)) == segments else ()


def _parts(count: int) -> list[Piece]:
    return [Piece(number, (0,)) for number in range(count)]


def _merged(made: Joined) -> list[AxisSegment]:
    """Return the segments of parts, those that follow each other in one part as one."""
    merged: list[AxisSegment] = []
    for segment in made.segments:
        if merged and (segment.part, segment.begin) == (
            merged[-1].part,
            merged[-1].begin + merged[-1].length,
        ):
            merged[-1] = merged[-1]._replace(length=merged[-1].length + segment.length)
        else:
            merged.append(segment)
    return merged
