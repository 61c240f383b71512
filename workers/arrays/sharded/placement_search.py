"""Tries in which way the pieces of two sides make up the same tensor, by their values.

Nothing is decided here: every way that the shapes allow is scored by how far the two sides are apart. Of a
large tensor, only ranges that are spread over it are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from workers.arrays.sharded.agreement import Agreement
from workers.arrays.sharded.assembly import (
    Assembly,
    Elements,
    Joined,
    Piece,
    Same,
    Shape,
    Shaped,
    Summed,
    joined,
    replicas,
)
from workers.arrays.sharded.content_placement import place_by_content
from workers.arrays.sharded.placement import (
    Held,
    MeshGrid,
    Placement,
    block_placements,
    grids,
    placements,
    same_on_both,
)
from workers.arrays.sharded.segment_match import MatchedOrder

#: Up to this many elements, a tensor is read as a whole to score a way.
_WHOLE = 256 * 1024
#: Of a larger one, this many ranges, with this many elements each.
_RANGES, _RANGE = 64, 4096
#: The most pairs of ways that are scored.
_MAX_PAIRS = 256
#: The most dimensions of a mesh that is guessed; with an error below this, no further ones are tried.
_MOST_DIMENSIONS, _GOOD = 4, 1e-3
#: Forms of tensors whose ways are kept: those of a model, whose layers repeat.
_FORMS = 64
#: Ways that are off by more than this are followed by a search for blocks.
_POOR = 0.05


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


def search(
    a: Pieces,
    b: Pieces,
    elements_a: Sequence[Elements],
    elements_b: Sequence[Elements],
    *,
    by_content: bool = True,
) -> Search:
    """Score every way in which pieces of A and of the reference B may make up the same tensor.

    If none fits, values are searched for blocks in any order, unless `by_content` is false.
    """
    sides = _Sides(a, b, elements_a, elements_b)
    scored: list[ScoredWay] = []
    for dimensions in range(_MOST_DIMENSIONS + 1):
        scored += [sides.score(way_a, way_b) for way_a, way_b in _pairs(a, b, dimensions)]
        if any(way.error <= _GOOD for way in scored):
            break  # meshes with more dimensions explain nothing that is left
    alike = sides.alike()
    scored += [alike] if alike else []
    scored.sort(key=lambda way: (way.error, not way.same_on_both))
    if scored and scored[0].error <= _POOR:
        return Search(tuple(scored))
    return sides.in_blocks(scored, by_content=by_content)


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
                        continue  # sums on both sides are held alike, which is scored rank by rank
                    pairs.append((way_a, way_b))
                    if len(pairs) == _MAX_PAIRS:
                        return pairs
    return pairs


@lru_cache(_FORMS)
def _usual_blocks(side: Pieces, whole: Shape) -> Sequence[Placement]:
    """Return the ways in which ranks hold several blocks of an axis."""
    ways = (way for grid in side.grids for way in block_placements(grid, side.shapes, whole))
    return [way for way in ways if not _adds_replicas(_with_twins(way.assembly, side.twins))]


@dataclass(frozen=True, slots=True)
class _Sides:
    """The pieces of both sides, and their elements."""

    a: Pieces
    b: Pieces
    elements_a: Sequence[Elements]
    elements_b: Sequence[Elements]

    def score(self, way_a: Placement, way_b: Placement) -> ScoredWay:
        """Return the error between the two sides if they are put together in these ways."""
        choices_a, choices_b = _distinct(way_a.assembly, self.a), _distinct(way_b.assembly, self.b)
        choices = [(choice, choices_b[0]) for choice in choices_a]
        choices += [(choices_a[0], choice) for choice in choices_b[1:]]
        agreements = [self._agreement(*choice) for choice in choices]
        errors = [agreement.error for agreement in agreements]
        place = errors.index(max(errors))
        worst = agreements[place]
        spread = worst.error - min(errors) if math.isfinite(worst.error) else 0.0
        return ScoredWay(
            way_a, way_b, worst.error, worst.factor, worst.error_besides_factor, spread, choices[place]
        )

    def alike(self) -> ScoredWay | None:
        """Return the score of comparing rank by rank; None if the two sides are not cut alike."""
        if len(self.a.shapes) < 2 or self.a.shapes != self.b.shapes:
            return None
        assembly = same_on_both(self.a.shapes)
        if assembly is None:
            return None
        way = Placement((), assembly)
        return replace(self.score(way, way), same_on_both=True)

    def in_blocks(self, scored: list[ScoredWay], *, by_content: bool) -> Search:
        """Add ways in which ranks hold several blocks; first the usual ones, then what the values show."""
        if len(self.b.shapes) > 1 and not self.b.identical:
            return Search(tuple(scored))
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

    def _agreement(self, assembly_a: Assembly, assembly_b: Assembly) -> Agreement:
        """Compare two assemblies over ranges; of a padded axis, what both have."""
        agreement = Agreement()
        a, b = trimmed(assembly_a, assembly_b), trimmed(assembly_b, assembly_a)
        for start, stop in _ranges(math.prod(b.shape)):
            agreement.add(a.read(self.elements_a, start, stop), b.read(self.elements_b, start, stop))
        return agreement


def _ways(side: Pieces, whole: Shape | None, dimensions: int) -> list[Placement]:
    """Return the placements of one side on meshes with this many dimensions, the simplest first."""
    ways: dict[tuple[object, ...], Placement] = {}
    for grid in side.grids:
        if dimensions != (len(grid.names) if side.grid is None else 1):
            continue
        for way in placements(grid, side.shapes, whole):
            if _adds_replicas(_with_twins(way.assembly, side.twins)):
                continue  # what is the same everywhere has been added up
            ways.setdefault((*map(str, way.dimensions), way.padding), way)
    return list(ways.values())


def _adds_replicas(assembly: Assembly) -> bool:
    """Return whether an assembly adds up parts that hold the same bytes."""
    if isinstance(assembly, Piece):
        return False
    if isinstance(assembly, Summed) and len(set(assembly.parts)) == 1:
        return True
    return any(_adds_replicas(part) for part in assembly.parts)


def is_sum(way: Placement) -> bool:
    """Return whether a placement adds pieces up."""
    return any(dimension.held in {Held.PARTIAL_SUM, Held.MEAN} for dimension in way.dimensions)


def _distinct(assembly: Assembly, side: Pieces) -> list[Assembly]:
    """Return an assembly with every choice of replicas that differ in any byte."""
    return list(dict.fromkeys(_with_twins(choice, side.twins) for choice in replicas(assembly)))


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
