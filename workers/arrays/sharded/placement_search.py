"""Tries in which way the pieces of two sides make up the same tensor, by their values.

Nothing is decided here: every way that the shapes allow is scored by how far the two sides are apart. Of a
large tensor, only ranges that are spread over it are read.

Where no usual way fits, positions of an axis of pieces are looked for in the whole by what they hold. A few
elements at each position are its profile. A position of a piece is that of the whole with the closest
profile, if it is close; positions that follow each other make a stretch. Of equal positions, such as those of
a token that occurs several times, the one is taken that makes the longest stretch.

So blocks of unequal lengths are found, such as queries and fewer keys and values, and packed sequences each
of which is cut in zigzag.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from workers.arrays.sharded.assembly import (
    Agreement,
    Array,
    Assembly,
    AxisSegment,
    Elements,
    Joined,
    Piece,
    Same,
    Shape,
    Shaped,
    Summed,
    WholeElements,
    interleaved,
    joined,
    replicas,
    widened,
    zigzag,
)
from workers.arrays.sharded.placement import (
    Dimension,
    Held,
    MeshGrid,
    Placement,
    assembled,
    block_placements,
    grids,
    placements,
    same_on_both,
    strided_placements,
)

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
    whole: int
    length: int


@dataclass(frozen=True, slots=True)
class MatchedOrder:
    """Where the positions of each piece lie in the whole, along one axis."""

    axis: int
    stretches: tuple[tuple[Stretch, ...], ...]
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


#: The most elements of a tensor that is searched.
_MAX_SIZE = 64 * 1024 * 1024
#: Samples are taken from this share of an axis that is cut in a way that is not known yet: each way that is
#: known begins with the beginning of the first piece.
_CONTENT_SHARE = 8


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
    box = [max(own // _CONTENT_SHARE, 1) if axis in cut else own for axis, own in enumerate(shape)]
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


#: Up to this many elements, a tensor is read as a whole to score a way.
_WHOLE = 256 * 1024
#: Up to this many, what ways make of a side is kept while others are scored.
_KEPT = 2 * 1024
#: Of a larger one, this many ranges, with this many elements each.
_RANGES, _RANGE = 64, 4096
#: The most pairs of ways that are scored.
_MAX_PAIRS = 256
#: The most dimensions of a mesh that is guessed; with an error below this, no further ones are tried.
_MOST_DIMENSIONS, _GOOD = 4, 1e-3
#: Forms of tensors whose ways are kept: those of a model, whose layers repeat.
_FORMS = 64
#: Ways that are off by more than this are followed by a search for blocks. A single number agrees by chance.
_POOR, _POOR_NUMBER = 0.05, 1e-5


@dataclass(frozen=True, slots=True)
class Pieces:
    """What is known of the pieces of one side before anything is read."""

    shapes: tuple[Shape, ...]
    twins: tuple[int, ...]
    """By piece: the first one with the same bytes and meaning; itself if there is none."""
    grid: MeshGrid | None = None
    """Where the pieces lie, if that is known; None to try all meshes."""

    @property
    def identical(self) -> bool:
        """Whether all pieces hold the same bytes."""
        return len(set(self.twins)) == 1

    @property
    def first(self) -> Pieces:
        """The first piece alone, of a tensor that is the same everywhere."""
        return Pieces(self.shapes[:1], (0,))

    @property
    def grids(self) -> list[MeshGrid]:
        """The meshes to try."""
        return [self.grid] if self.grid is not None else grids(len(self.shapes))


@dataclass(frozen=True, slots=True)
class ScoredWay:
    """One way in which both sides make up the same tensor, and how far they are apart then."""

    a: Placement
    b: Placement
    error: float
    """|a - b| / |b| over what was read; of replicas, that of the worst."""
    factor: float = math.nan
    """The number that brings b closest to a."""
    error_besides_factor: float = math.inf
    """The part of a that is not a multiple of b, relative to a."""
    spread: float = 0.0
    """By how much replicas differ in their distance from the other side."""
    worst: tuple[Assembly, Assembly] | None = None
    """How both sides are put together from the replicas that are farthest apart."""
    same_on_both: bool = False
    """Whether both sides hold the tensor alike, in whatever way: they were compared rank by rank."""

    @property
    def kinds(self) -> tuple[str, str]:
        """How the two sides hold it, without sizes."""
        return self.a.kind, self.b.kind


@dataclass(frozen=True, slots=True)
class Search:
    """Every way that was tried, the closest first; of equally close ones, the simplest first."""

    ways: tuple[ScoredWay, ...]
    order: MatchedOrder | None = None
    """Where the values of each piece of A lie in the tensor, if no way fits and they were found."""
    is_unusual: bool = False
    """Whether the closest way is one that is tried only where no usual one fits."""


def search(
    a: Pieces,
    b: Pieces,
    elements_a: Sequence[Elements],
    elements_b: Sequence[Elements],
    *,
    further: bool = True,
) -> Search:
    """Score every way in which pieces of A and of the reference B may make up the same tensor.

    If none fits, ways follow in which both sides are cut into blocks or added up, or values are searched for
    blocks in any order, unless `further` is false.

    Memory: pieces of together at most 256 Ki elements, in float64; and what each way makes of a tensor of at
    most 2 Ki elements, 16 KiB.
    """
    sides = _Sides(a, b, _in_memory(a, elements_a), _in_memory(b, elements_b))
    scored: list[ScoredWay] = []
    for dimensions in range(_MOST_DIMENSIONS + 1):
        scored += [sides.score(way_a, way_b) for way_a, way_b in _pairs(a, b, dimensions)]
        if any(way.error <= _GOOD for way in scored):
            break  # meshes with more dimensions explain nothing that is left
    alike = sides.alike()
    scored += [alike] if alike else []
    scored.sort(key=lambda way: (way.error, not way.same_on_both))
    is_number = math.prod(b.shapes[0]) == 1
    if scored and scored[0].error <= (_POOR_NUMBER if is_number else _POOR):
        return Search(tuple(scored))
    if len(b.shapes) == 1 or b.identical:
        return sides.in_blocks(scored, by_content=further)
    unusual = [sides.score(*pair) for pair in _unusual_pairs(a, b)] if further else []
    ways = sorted([*scored, *unusual], key=lambda way: (way.error, not way.same_on_both))
    return Search(tuple(ways), is_unusual=any(way is ways[0] for way in unusual))


def _in_memory(side: Pieces, elements: Sequence[Elements]) -> Sequence[Elements]:
    """Return pieces in memory and widened, if they are small: each way reads them again."""
    sizes = list(map(math.prod, side.shapes))
    if sum(sizes) > _WHOLE:
        return elements
    return [WholeElements(widened(each.read(0, size))) for each, size in zip(elements, sizes, strict=True)]


@lru_cache(_FORMS * (_MOST_DIMENSIONS + 1))
def _pairs(a: Pieces, b: Pieces, dimensions: int) -> Sequence[tuple[Placement, Placement]]:
    """Return the ways that the shapes allow, the simplest first.

    Args:
        a: the pieces of A.
        b: the pieces of B.
        dimensions: how many the guessed mesh with more of them has; a mesh that is known counts as one.
    """
    pairs: list[tuple[Placement, Placement]] = []
    for own_b in range(dimensions + 1):
        for way_b in _ways(b, None, own_b):
            for own_a in range(dimensions + 1) if own_b == dimensions else [dimensions]:
                for way_a in _ways(a, way_b.assembly.shape, own_a):
                    if is_sum(way_a) and is_sum(way_b):
                        continue  # sums on both sides are mostly held alike, which is scored rank by rank
                    pairs.append((way_a, way_b))
                    if len(pairs) == _MAX_PAIRS:
                        return pairs
    return pairs


@lru_cache(_FORMS)
def _usual_blocks(side: Pieces, whole: Shape) -> Sequence[Placement]:
    ways = (way for grid in side.grids for way in block_placements(grid, side.shapes, whole))
    return [way for way in ways if not _adds_replicas(_with_twins(way.assembly, side.twins))]


@lru_cache(_FORMS)
def _unusual_pairs(a: Pieces, b: Pieces) -> Sequence[tuple[Placement, Placement]]:
    """Return the ways in which both sides are cut or added up, other than those of `_pairs`.

    One side holds several blocks, or both hold as many; or both are sums, as of gradients that are dumped
    before they are reduced.
    """

    def ways(side: Pieces, whole: Shape | None) -> list[Placement]:
        return [way for dimensions in (1, 2) for way in _ways(side, whole, dimensions)]

    pairs: list[tuple[Placement, Placement]] = []
    for whole in dict.fromkeys(way.assembly.shape for way in ways(b, None)):
        of_a, of_b = ways(a, whole), ways(b, whole)
        blocks_a, blocks_b = _usual_blocks(a, whole), _usual_blocks(b, whole)
        pairs += [(one, other) for one in of_a for other in of_b if _are_sums(one, other)]
        pairs += [(one, other) for one in blocks_a for other in blocks_b if _blocks(one) == _blocks(other)]
        pairs += [(one, other) for one in blocks_a for other in of_b if not is_sum(other)]
        pairs += [(one, other) for one in of_a for other in blocks_b if not is_sum(one)]
    return pairs[:_MAX_PAIRS]


def _are_sums(one: Placement, other: Placement) -> bool:
    """Return whether both add up pieces. Means of as many pieces are told from sums by nothing."""
    sums, others = _other_than_replicated(one), _other_than_replicated(other)
    is_alike = [dimension.kind for dimension in sums] == [dimension.kind for dimension in others]
    sizes, of_other = ([dimension.size for dimension in each] for each in (sums, others))
    has_mean = any(dimension.held is Held.MEAN for dimension in sums)
    return is_sum(one) and is_alike and (sizes != of_other or not has_mean)


def _other_than_replicated(way: Placement) -> list[Dimension]:
    return [dimension for dimension in way.dimensions if dimension.held is not Held.REPLICATED]


def _blocks(way: Placement) -> list[tuple[Held, int | None, int]]:
    return [
        (dimension.held, dimension.axis, len(dimension.lengths))
        for dimension in way.dimensions
        if dimension.held in {Held.BLOCKS, Held.ZIGZAG}
    ]


@dataclass(frozen=True, slots=True)
class _Sides:
    a: Pieces
    b: Pieces
    elements_a: Sequence[Elements]
    elements_b: Sequence[Elements]
    _kept: dict[tuple[bool, Assembly], Array] = field(default_factory=dict)
    """What assemblies of small tensors make of the pieces of A (true) or of B."""

    def score(self, way_a: Placement, way_b: Placement) -> ScoredWay:
        choices = _choices(way_a.assembly, self.a.twins, way_b.assembly, self.b.twins)
        agreements = [self._agreement(*choice) for choice in choices]
        errors = [agreement.error for agreement in agreements]
        place = errors.index(max(errors))
        worst = agreements[place]
        spread = worst.error - min(errors) if math.isfinite(worst.error) else 0.0
        return ScoredWay(
            way_a, way_b, worst.error, worst.factor, worst.error_besides_factor, spread, choices[place]
        )

    def alike(self) -> ScoredWay | None:
        if len(self.a.shapes) < 2 or self.a.shapes != self.b.shapes:
            return None
        assembly = same_on_both(self.a.shapes)
        if assembly is None:
            return None
        way = Placement((), assembly)
        return replace(self.score(way, way), same_on_both=True)

    def in_blocks(self, scored: list[ScoredWay], *, by_content: bool) -> Search:
        """Add ways in which ranks hold several blocks; first the usual ones, then what the values show."""
        whole = Placement((), Piece(0, self.b.shapes[0]))
        scored += [self.score(way, whole) for way in _usual_blocks(self.a, self.b.shapes[0])]
        order = None
        if by_content and (not scored or min(way.error for way in scored) > _POOR):
            order, placement = place_by_content(
                self.a.grids, self.a.shapes, self.elements_a, self.elements_b[0], self.b.shapes[0]
            )
            if placement is not None and not _adds_replicas(_with_twins(placement.assembly, self.a.twins)):
                scored.append(self.score(placement, whole))
        scored.sort(key=lambda way: way.error)
        return Search(tuple(scored), order)

    def _agreement(self, a: Assembly, b: Assembly) -> Agreement:
        agreement = Agreement()
        for start, stop in _ranges(math.prod(b.shape)):
            agreement.add(self._values(a, start, stop, is_a=True), self._values(b, start, stop, is_a=False))
        return agreement

    def _values(self, assembly: Assembly, start: int, stop: int, *, is_a: bool) -> Array:
        """Return what an assembly makes of the pieces of a side. Each is in several pairs of ways."""
        pieces = self.elements_a if is_a else self.elements_b
        if stop - start > _KEPT or (start, stop) != (0, math.prod(assembly.shape)):
            return assembly.read(pieces, start, stop)
        if (is_a, assembly) not in self._kept:
            self._kept[is_a, assembly] = assembly.read(pieces, start, stop)
        return self._kept[is_a, assembly]


def _ways(side: Pieces, whole: Shape | None, dimensions: int) -> list[Placement]:
    """Return the placements of one side on meshes with this many dimensions, the simplest first."""
    ways: dict[tuple[object, ...], Placement] = {}
    for grid in side.grids:
        if dimensions != (len(grid.names) if side.grid is None else 1):
            continue
        plain = placements(grid, side.shapes, whole)
        # A guessed mesh is taken for strided only where nothing plain fits.
        strided = strided_placements(grid, side.shapes, whole) if side.grid is not None else []
        for way in (*plain, *strided):
            if _adds_replicas(_with_twins(way.assembly, side.twins)):
                continue  # what is the same everywhere has been added up
            ways.setdefault((*map(str, way.dimensions), way.padding), way)
    return list(ways.values())


def _adds_replicas(assembly: Assembly) -> bool:
    if isinstance(assembly, Piece):
        return False
    if isinstance(assembly, Summed) and len(set(assembly.parts)) == 1:
        return True
    return any(_adds_replicas(part) for part in assembly.parts)


def is_sum(way: Placement) -> bool:
    """Return whether a placement adds pieces up."""
    return any(dimension.held in {Held.PARTIAL_SUM, Held.MEAN} for dimension in way.dimensions)


@lru_cache(_FORMS * _MAX_PAIRS)
def _choices(
    a: Assembly, twins_a: tuple[int, ...], b: Assembly, twins_b: tuple[int, ...]
) -> list[tuple[Assembly, Assembly]]:
    """Return two assemblies with every choice of replicas of one that differ in any byte.

    Of a padded axis, they have what both have.
    """
    choices_a, choices_b = (
        list(dict.fromkeys(_with_twins(choice, twins) for choice in replicas(assembly)))
        for assembly, twins in ((a, twins_a), (b, twins_b))
    )
    choices = [(choice, choices_b[0]) for choice in choices_a]
    choices += [(choices_a[0], choice) for choice in choices_b[1:]]
    return [(trimmed(one, other), trimmed(other, one)) for one, other in choices]


def _with_twins(assembly: Assembly, twins: Sequence[int]) -> Assembly:
    match assembly:
        case Piece():
            return replace(assembly, number=twins[assembly.number])
        case Joined() | Summed() | Same():
            return replace(assembly, parts=tuple(_with_twins(part, twins) for part in assembly.parts))
        case Shaped():
            return replace(assembly, parts=(_with_twins(assembly.parts[0], twins),))


def trimmed(assembly: Assembly, other: Assembly) -> Assembly:
    """Return an assembly without the padding at the end of an axis that another one does not have."""
    for axis, (length, limit) in enumerate(zip(assembly.shape, other.shape, strict=True)):
        if length > limit:
            assembly = joined([assembly], axis, limit)
    return assembly


def _ranges(size: int) -> list[tuple[int, int]]:
    if size <= _WHOLE:
        return [(0, size)]
    last = size - _RANGE
    starts = [last * number // (_RANGES - 1) for number in range(_RANGES)]
    return [(start, start + _RANGE) for start in starts]
