"""How the ranks of a run hold one tensor, and which ways are possible by the shapes of its pieces.

Ranks lie on a mesh of one or several dimensions, outer to inner; along each, the tensor is replicated, cut
along one of its axes, or a sum that has not been added up yet. These are the placements of DTensor
(`torch/distributed/tensor/placement_types.py`), and a mean, blocks and padding besides.

Marginals alone may tell it, too. Sums along an axis are linear: those of partial sums add up to those of the
whole, and so do those of shards along an axis that is not cut; along the cut one, they follow one another.
Squares add up over shards, and not over partial sums. Only axes of which both sides have marginals are
compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, pairwise, product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.marginals import Marginal
from workers.arrays.sharded.assembly import (
    Assembly,
    Piece,
    Same,
    Shape,
    Shaped,
    Summed,
    interleaved,
    joined,
    zigzag,
)
from workers.model import counted

#: The most dimensions of a mesh that is guessed, and the most ways that are tried for one tensor.
_MAX_DIMENSIONS = 4
_MAX_WAYS = 96
_PLANE = 2
#: The most blocks that each rank is assumed to hold: queries, keys, values; gate and up.
_BLOCKS = (2, 3, 4)


class Held(StrEnum):
    """How the ranks along one dimension of a mesh hold a tensor."""

    REPLICATED = "replicated"
    SHARD = "shard"
    """Cut along an axis, in the order of the ranks."""
    STRIDED = "strided shard"
    """Cut along an axis that an inner dimension of the mesh has cut before: FSDP2 over tensor parallelism."""
    BLOCKS = "blocks"
    """Cut along an axis into several blocks, each of which is cut: fused projections."""
    FLAT = "flat shard"
    """Its elements one after the other, as of one axis, are cut: parameters of FSDP1."""
    ZIGZAG = "zigzag"
    """Cut along an axis into twice as many chunks as ranks, an early and a late one for each. With lengths,
    each of several sequences that lie one behind the other is cut so."""
    PARTIAL_SUM = "partial sum"
    MEAN = "mean"
    """What the ranks hold has to be averaged: losses and gradients before they are reduced."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """How a tensor is held along one dimension of the mesh."""

    held: Held
    size: int
    axis: int | None = None
    name: str = ""
    """The name of the dimension, such as `tp`; "" if it is not known."""
    lengths: tuple[int, ...] = ()
    """Of blocks: how long each block of a rank is. Of sequences in zigzag: how long each is as a whole."""

    @property
    def kind(self) -> str:
        """What it is without sizes, such as `shard 0`: the same for all tensors that are cut alike."""
        if self.axis is None:
            return self.held.value
        of_each = " of each sequence" if self.held is Held.ZIGZAG and self.lengths else ""
        return f"{self.held.value} {self.axis}{of_each}"

    def __str__(self) -> str:
        text = self.kind
        if self.lengths:
            text += f" ({'+'.join(map(str, self.lengths))}{' per rank' * (self.held is Held.BLOCKS)})"
        return f"{self.name}: {text}" if self.name else text


@dataclass(frozen=True, slots=True)
class Placement:
    """How the ranks of a run hold one tensor, and how it is put together from their pieces."""

    dimensions: tuple[Dimension, ...]
    """Outer to inner; none for a tensor that a single rank holds."""
    assembly: Assembly
    padding: int = 0
    """How many positions at the end of the cut axis do not belong to the tensor; negative if they lack."""
    uneven: bool = False

    @property
    def kind(self) -> str:
        """What it is without sizes, such as `replicated` or `shard 0, replicated`."""
        kinds = [dimension.kind for dimension in self.dimensions if dimension.size > 1]
        if len(set(kinds)) == 1:
            return kinds[0]
        return ", ".join(kinds) or "whole"

    def __str__(self) -> str:
        shown = [dimension for dimension in self.dimensions if dimension.size > 1]
        text = ", ".join(map(str, shown)) or "whole"
        remarks = ["uneven"] * self.uneven
        if self.padding:
            positions = counted(abs(self.padding), "position")
            remarks.append(f"{positions} of padding{' in B' * (self.padding < 0)}")
        return f"{text} ({', '.join(remarks)})" if remarks else text


@dataclass(frozen=True, slots=True, eq=False)
class MeshGrid:
    """Pieces by their place on a mesh. Equal meshes are equal keys."""

    names: tuple[str, ...]
    """Of the dimensions, outer to inner; "" if they are not known."""
    numbers: npt.NDArray[np.int64]
    """The number of the piece at each place; one axis for each dimension."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeshGrid) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        return self.names, self.numbers.shape, self.numbers.tobytes()


_Way: TypeAlias = tuple[Held, int | None]


def grids(count: int) -> list[MeshGrid]:
    """Return every mesh of at most four dimensions that pieces in the order of their ranks may lie on."""
    numbers = np.arange(count)
    return [
        MeshGrid(("",) * len(sizes), numbers.reshape(sizes))
        for sizes in _factorizations(count, _MAX_DIMENSIONS)
        if count > 1
    ] or [MeshGrid((), numbers.reshape(()))]


def _factorizations(count: int, dimensions: int) -> Iterator[tuple[int, ...]]:
    yield (count,)
    if dimensions > 1:
        for first in range(2, count // 2 + 1):
            if count % first == 0:
                for rest in _factorizations(count // first, dimensions - 1):
                    yield (first, *rest)


def placements(
    grid: MeshGrid, shapes: Sequence[Shape], whole: Shape | None, *, repeated: bool = False
) -> list[Placement]:
    """Return the plain ways in which pieces of these shapes may make up a tensor, the simplest first.

    Args:
        grid: where the pieces lie.
        shapes: of the pieces, by number.
        whole: the shape of the tensor; None if it is not known: whatever the shapes allow then.
        repeated: include ways in which neighbouring dimensions of a guessed mesh hold it alike, so that they
            are one.
    """
    if not grid.names:
        return _of_one_rank(shapes[0], whole)
    if len({len(shape) for shape in shapes}) > 1:
        return []
    if whole is not None and len(whole) > 1 and len(shapes[0]) == 1:
        flat = placements(grid, shapes, (math.prod(whole),))
        return [_flat(placement, whole) for placement in flat]
    tried = (
        _placement(grid, shapes, ways, whole) for ways in _ways_on(grid, len(shapes[0]), repeated=repeated)
    )
    return list(islice(filter(None, tried), _MAX_WAYS))


def _of_one_rank(shape: Shape, whole: Shape | None) -> list[Placement]:
    piece = Placement((), Piece(0, shape))
    if whole is None or whole == shape:
        return [piece]
    return [_flat(piece, whole)] if shape == (math.prod(whole),) else []


def _ways_on(grid: MeshGrid, axes: int, *, repeated: bool) -> list[tuple[_Way, ...]]:
    """Return the combinations of plain ways, one for each dimension of a mesh, the simplest first.

    On a mesh of many dimensions not all can be tried: sums along most of them are the least likely.
    """
    shards = [(Held.SHARD, axis) for axis in range(axes)]
    ways: list[_Way] = [(Held.REPLICATED, None), *shards, (Held.PARTIAL_SUM, None), (Held.MEAN, None)]
    return sorted(_combinations(ways, len(grid.names), repeated=repeated or any(grid.names)), key=_sums)


def _combinations(ways: Sequence[_Way], count: int, *, repeated: bool) -> Iterator[tuple[_Way, ...]]:
    """Yield a way for each dimension; on a guessed mesh, equal neighbours are a mesh of fewer dimensions."""
    if not count:
        yield ()
        return
    for first in ways:
        for rest in _combinations(ways, count - 1, repeated=repeated):
            if repeated or not rest or rest[0] != first:
                yield (first, *rest)


def _sums(ways: tuple[_Way, ...]) -> int:
    """Return along how many dimensions more than one of a mesh pieces are added up."""
    return max(sum(held in {Held.PARTIAL_SUM, Held.MEAN} for held, _ in ways) - 1, 0)


def _flat(placement: Placement, whole: Shape) -> Placement:
    if placement.assembly.shape == whole:
        return placement
    dimensions = tuple(
        replace(dimension, held=Held.FLAT, axis=None) if dimension.held is Held.SHARD else dimension
        for dimension in placement.dimensions
    )
    return replace(placement, dimensions=dimensions, assembly=Shaped((placement.assembly,), whole))


def _is_uneven(shapes: Sequence[Shape], axis: int) -> bool:
    return len({shape[axis] for shape in shapes}) > 1


def _placement(
    grid: MeshGrid, shapes: Sequence[Shape], ways: Sequence[_Way], whole: Shape | None
) -> Placement | None:
    if whole is not None and not _may_fit(grid, shapes, ways, whole):
        return None
    dimensions = tuple(
        Dimension(held, size, axis, name)
        for (held, axis), size, name in zip(ways, grid.numbers.shape, grid.names, strict=True)
    )
    assembly = assembled(grid.numbers, shapes, dimensions)
    if assembly is None:
        return None
    uneven = any(axis is not None and _is_uneven(shapes, axis) for _, axis in ways)
    if whole is None or assembly.shape == whole:
        return Placement(dimensions, assembly, uneven=uneven)
    if whole in shapes:
        return None  # what a rank has is not padded to several times the tensor
    return _padded(
        Placement(dimensions, assembly, uneven=uneven),
        whole,
        max_piece=tuple(map(max, zip(*shapes, strict=True))),
    )


def _may_fit(grid: MeshGrid, shapes: Sequence[Shape], ways: Sequence[_Way], whole: Shape) -> bool:
    if len(set(shapes)) > 1:
        return True
    lengths = list(shapes[0])
    for (_, axis), size in zip(ways, grid.numbers.shape, strict=True):
        if axis is not None:
            lengths[axis] *= size
    return sum(own != wanted for own, wanted in zip(lengths, whole, strict=False)) <= 1


def assembled(
    numbers: npt.NDArray[np.int64], shapes: Sequence[Shape], dimensions: Sequence[Dimension]
) -> Assembly | None:
    """Return pieces put together in this way; None if their shapes do not allow it.

    Args:
        numbers: of the pieces, by place on the mesh.
        shapes: of the pieces.
        dimensions: of the mesh.
    """
    if not numbers.shape:
        number = int(numbers)
        return Piece(number, shapes[number])
    parts = [assembled(part, shapes, dimensions[1:]) for part in numbers]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return _along(dimensions[0], known)


def _along(dimension: Dimension, parts: Sequence[Assembly]) -> Assembly | None:
    if dimension.axis is not None:
        return _cut(parts, dimension.held, dimension.axis, dimension.lengths)
    if len({part.shape for part in parts}) > 1:
        return None
    if dimension.held is Held.REPLICATED:
        return Same(tuple(parts))
    return Summed(tuple(parts), 1 / len(parts) if dimension.held is Held.MEAN else 1.0)


def _cut(parts: Sequence[Assembly], held: Held, axis: int, lengths: Sequence[int]) -> Assembly | None:
    if len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) > 1:
        return None  # they differ in another axis
    if held is Held.BLOCKS:
        return interleaved(parts, axis, lengths)
    return zigzag(parts, axis, lengths) if held is Held.ZIGZAG else joined(parts, axis)


def _differing_axis(a: Shape, b: Shape) -> int | None:
    if len(a) != len(b):
        return None
    differing = [
        axis for axis, (length_a, length_b) in enumerate(zip(a, b, strict=True)) if length_a != length_b
    ]
    return differing[0] if len(differing) == 1 else None


def _padded(placement: Placement, whole: Shape, *, max_piece: Shape) -> Placement | None:
    """Return a placement whose cut axis is longer than that of the tensor, or shorter; None if it cannot be.

    Frameworks pad an axis so that all ranks have as much of it: by less than a rank has, or by less than one
    position for each rank.
    """
    shape = placement.assembly.shape
    axis = _differing_axis(shape, whole)
    cut = {dimension.axis: dimension.size for dimension in placement.dimensions if dimension.axis is not None}
    if axis is None or axis not in cut:
        return None
    excess = shape[axis] - whole[axis]
    if abs(excess) >= max(max_piece[axis], cut[axis]) or whole[axis] < abs(excess):
        return None
    if excess < 0:
        return Placement(placement.dimensions, placement.assembly, excess, placement.uneven)
    trimmed = joined([placement.assembly], axis, whole[axis])
    return Placement(placement.dimensions, trimmed, excess, placement.uneven)


def block_placements(grid: MeshGrid, shapes: Sequence[Shape], whole: Shape) -> list[Placement]:
    """Return the ways in which ranks hold several blocks of an axis, chunks in zigzag, or strided shards.

    One dimension of the mesh holds blocks, one holds chunks in zigzag, or one of each does: fused projections
    under context parallelism. Strided shards are tried only on meshes of two dimensions.
    """
    possible = strided_placements(grid, shapes, whole)
    for plain in placements(grid, shapes, whole, repeated=True):
        if plain.padding or plain.uneven:
            continue
        for dimensions in _in_blocks(plain.dimensions, shapes[0]):
            assembly = assembled(grid.numbers, shapes, dimensions)
            if assembly is not None and assembly.shape == whole:
                possible.append(Placement(dimensions, assembly))
    return possible


def strided_placements(grid: MeshGrid, shapes: Sequence[Shape], whole: Shape | None) -> list[Placement]:
    """Return the ways in which the inner dimension of a mesh cuts an axis, and the outer one its shards.

    Without the shape of the whole, whatever the shapes allow.
    """
    axes = len(shapes[0]) if whole is None else len(whole)
    if len(grid.names) != _PLANE or any(len(shape) != axes for shape in shapes):
        return []
    possible = []
    for axis in range(axes):
        outer, inner = (
            Dimension(held, size, axis, name)
            for held, size, name in zip(
                (Held.STRIDED, Held.SHARD), grid.numbers.shape, grid.names, strict=True
            )
        )
        assembly = assembled(grid.numbers.T, shapes, (inner, outer))
        if assembly is not None and whole in (None, assembly.shape):
            uneven = _is_uneven(shapes, axis)
            possible.append(Placement((outer, inner), assembly, uneven=uneven))
    return possible


def _forms_of_shard(dimension: Dimension, inner: Sequence[Dimension], shape: Shape) -> Iterable[Dimension]:
    """Return in which other ways a dimension may hold its shards; `inner` are those inside of it."""
    axis = dimension.axis
    if dimension.held is not Held.SHARD or axis is None:
        return []
    return _forms(dimension, shape[axis], [other.size for other in inner if other.axis == axis])


def _in_blocks(dimensions: Sequence[Dimension], shape: Shape) -> Iterator[tuple[Dimension, ...]]:
    """Yield dimensions of which one holds blocks, one chunks in zigzag, or one of each.

    Args:
        dimensions: how a tensor is held plainly.
        shape: of each piece.
    """
    choices = [
        [dimension, *_forms_of_shard(dimension, dimensions[number + 1 :], shape)]
        for number, dimension in enumerate(dimensions)
    ]
    for chosen in product(*choices):
        others = [dimension.held for dimension in chosen if dimension.held in {Held.BLOCKS, Held.ZIGZAG}]
        if others and len(set(others)) == len(others) and not any(map(_is_one, pairwise(chosen))):
            yield chosen


def _is_one(neighbours: tuple[Dimension, Dimension]) -> bool:
    first, second = neighbours
    return not first.name and first.held is second.held and first.axis == second.axis


def _forms(dimension: Dimension, length: int, inner: Sequence[int]) -> Iterator[Dimension]:
    """Yield how several blocks, or chunks in zigzag, may lie in what is cut plainly.

    Args:
        dimension: how it is cut plainly.
        length: of a piece along the axis.
        inner: how many ranks each inner dimension has that cuts the axis, too. Blocks of what these cut are
            strided shards.
    """
    for blocks in () if inner else _BLOCKS:
        if length % blocks == 0:
            yield replace(dimension, held=Held.BLOCKS, lengths=(length // blocks,) * blocks)
    if length * math.prod(inner) % 2 == 0:
        yield replace(dimension, held=Held.ZIGZAG)


def same_on_both(shapes: Sequence[Shape]) -> Assembly | None:
    """Return pieces of one shape one behind the other: to compare rank by rank what lies alike in both."""
    if len(set(shapes)) != 1:
        return None
    pieces = [Piece(number, shape) for number, shape in enumerate(shapes)]
    parts: list[Any] = pieces if shapes[0] else [Shaped((piece,), (1,)) for piece in pieces]
    return joined(parts, 0)


#: A way is accepted if its error is at most the first, and that of every other way this many times larger.
FIT, _TIMES = 1e-3, 8.0
_Sides = Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class MarginalWay:
    """One way in which pieces may make up a tensor, and how far their marginals are apart then."""

    held: Held
    axis: int | None
    error: float
    """|a - b| / |b|, of sums and norms; NaN if no axis can be compared."""

    def __str__(self) -> str:
        return self.held.value if self.axis is None else f"{self.held.value} {self.axis}"


def _are_cut(shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...], axis: int) -> bool:
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
            ways.append(MarginalWay(Held.SHARD, axis, _error(_cut_marginals(pieces, whole, axis))))
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
        yield piece[axis].sum, whole[axis].sum
        yield piece[axis].l2_norm, whole[axis].l2_norm


def _summed(pieces: Sequence[Mapping[int, Marginal]], whole: Mapping[int, Marginal]) -> _Sides:
    for axis in _common(pieces, whole):
        sums = np.stack([piece[axis].sum for piece in pieces])
        yield sums.sum(axis=0, dtype=np.float64), whole[axis].sum


def _cut_marginals(
    pieces: Sequence[Mapping[int, Marginal]], whole: Mapping[int, Marginal], cut: int
) -> _Sides:
    for axis in _common(pieces, whole):
        if axis == cut:
            yield np.concatenate([piece[axis].sum for piece in pieces]), whole[axis].sum
            yield np.concatenate([piece[axis].l2_norm for piece in pieces]), whole[axis].l2_norm
        else:
            added = Marginal.added(piece[axis] for piece in pieces)
            yield added.sum, whole[axis].sum
            yield added.l2_norm, whole[axis].l2_norm


def _common(pieces: Sequence[Mapping[int, Marginal]], whole: Mapping[int, Marginal]) -> list[int]:
    return sorted(axis for axis in whole if all(axis in piece for piece in pieces))


def _error(sides: _Sides) -> float:
    """Return the largest relative distance of pairs of vectors; NaN if there are none."""
    errors = []
    for own, narrow in sides:
        expected = narrow.astype(np.float64)
        scale = float(np.linalg.norm(expected))
        distance = float(np.linalg.norm(own - expected))
        errors.append(distance / scale if scale else (math.inf if distance else 0.0))
    return max(errors, default=math.nan)
