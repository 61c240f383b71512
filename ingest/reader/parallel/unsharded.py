"""A tensor as a whole, put together from the pieces that ranks have of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ingest.reader.array_like import ArrayLike
from ingest.reader.parallel.mesh import Coordinates
from ingest.reader.parallel.mesh_grid import grid_of
from ingest.reader.parallel.told_placement import Told, is_told, told_placement, told_text
from ingest.reader.ranges import format_ranges
from ingest.reader.text import shape_text
from workers.arrays.sharded.assembly import Elements, replicas
from workers.arrays.sharded.placement import (
    Dimension,
    Held,
    MeshGrid,
    Placement,
    assembled,
    block_placements,
    grids,
    placements,
)
from workers.errors import UsageError
from workers.model import MIB

#: What may be told of a dimension of a mesh, whatever the others are.
_PLAIN = re.compile(r"(?P<held>replicated|partial sum|mean|shard|zigzag)(?: (?P<axis>\d{1,9}))?")
#: Elements that are put together at a time.
_PIECE_NBYTES = 4 * MIB
#: The most ways that a message names: a large mesh has thousands, and to find all takes many seconds.
_KINDS_NAMED = 8
_HINT = 'For example: unsharded("shard 0"), "replicated", "partial sum", "replicated, shard 1".'


class PieceTensor(Protocol):
    """What is needed of the tensor of one rank."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def rank(self) -> int:
        """Its rank."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""

    @property
    def dtype(self) -> str:
        """The type of its elements."""

    @property
    def digest(self) -> str:
        """The digest of its payload."""

    @property
    def attributes(self) -> dict[str, Any]:
        """What its file tells besides."""

    def elements(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return some of its elements, 1-D, in the order of its axes."""


@dataclass(frozen=True, slots=True)
class _Elements:
    tensor: PieceTensor

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self.tensor.elements(start, stop)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class UnshardedTensor(ArrayLike):
    """A whole tensor. Its elements are read from the pieces of all ranks when they are asked for."""

    pieces: tuple[PieceTensor, ...]
    """By rank."""
    placement: Placement
    why: str
    """What shows how ranks hold it: `given`, `told` by the dump, or `equal bytes`."""

    def __repr__(self) -> str:
        shape, ranks = shape_text(self.shape), format_ranges(self.ranks)
        return f"<UnshardedTensor {self.name} {shape} of ranks {ranks}: {self.placement}>"

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.pieces[0].name

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a piece, in order."""
        return tuple(piece.rank for piece in self.pieces)

    @property
    def dtype(self) -> str:
        """The type of the elements of the pieces; a sum of them is float64."""
        return self.pieces[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes of the whole tensor."""
        return self.placement.assembly.shape

    @property
    def stored_axes(self) -> tuple[int, ...]:
        """The axes in their order."""
        return tuple(range(len(self.shape)))

    def stored(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return `elements`."""
        return self.elements(start, stop)

    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:  # noqa: ARG002  (ranges have no digest)
        """Return the whole tensor. Chunks have checksums; the digests of pieces are not compared.

        Raises:
            UsageError: only statistics of a piece were dumped.
            DamagedStore: chunks of a piece are missing or damaged.
        """
        return self.elements(0, math.prod(self.shape)).reshape(self.shape)

    def parts(self) -> Iterator[npt.NDArray[Any]]:
        """Yield all elements, 1-D, in the order of the axes, in pieces of about 4 MiB."""
        size = math.prod(self.shape)
        step = max(_PIECE_NBYTES // 8, 1)
        for start in range(0, size, step):
            yield self.elements(start, min(start + step, size))

    def elements(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements `start` to `stop`, 1-D, in the order of the axes.

        Raises:
            UsageError: only statistics of a piece were dumped, or its elements were removed.
            DamagedStore: chunks of a piece are missing or damaged.
        """
        elements: Sequence[Elements] = [_Elements(piece) for piece in self.pieces]
        return np.asarray(self.placement.assembly.read(elements, start, stop))


def unshard(
    pieces: Sequence[PieceTensor], places: Sequence[Coordinates], wanted: str = ""
) -> UnshardedTensor:
    """Put a tensor together.

    Args:
        pieces: the tensor of every rank that has it, by rank.
        places: where these ranks are in the mesh; empty where that is not known.
        wanted: how they hold it, such as `shard 0`; "" to go by what the dump tells, or by equal bytes.

    Raises:
        UsageError: it is not known how the ranks hold it, or the shapes of the pieces do not allow that.
    """
    shapes = [piece.shape for piece in pieces]
    if len(pieces) == 1:
        whole = placements(grids(1)[0], shapes, None)[0]
        return UnshardedTensor(tuple(pieces), whole, "a single rank has it")
    told = told_placement(pieces[0].attributes)
    known = grid_of(places, told)
    on_grids = _grids(known, len(pieces))
    choice = _choice(pieces, wanted, told if known else {})
    possible = chain(_as_told(known, shapes, told), _ways(on_grids, shapes))
    fitting = (way for way in possible if choice is not None and choice.fits(way))
    chosen = next(fitting, None) if choice else None
    if not wanted and chosen and not _is_same_everywhere(pieces, chosen):
        raise UsageError(
            f"{pieces[0].name}: the dump tells {told_text(told)}, and ranks hold different bytes",
            hint='`dump-ingest layout` tells more; placement "replicated" takes the piece of the first rank.',
        )
    if choice is None or chosen is None:
        problem = _problem(wanted, told, _ways(on_grids, shapes), is_placed=known is not None)
        raise UsageError(f"{pieces[0].name}: {problem}", hint=_HINT)
    return UnshardedTensor(tuple(pieces), chosen, choice.why)


class _ChosenWay(NamedTuple):
    """Which of the possible ways is taken, and why."""

    fits: Callable[[Placement], bool]
    why: str


def _choice(pieces: Sequence[PieceTensor], wanted: str, told: Told) -> _ChosenWay | None:
    """Return how one way is chosen: by the user, what the dump tells, or equal bytes; None if by none."""
    if wanted:
        return _ChosenWay(lambda way: way.kind == wanted, "given")
    if told:
        return _ChosenWay(lambda way: is_told(way, told), f"told: {told_text(told)}")
    if _are_equal(pieces):
        return _ChosenWay(lambda way: way.kind == "replicated", "equal bytes")
    return None


def _are_equal(pieces: Sequence[PieceTensor]) -> bool:
    """Return whether all pieces have the same bytes, type and shape; False if bytes are not known."""
    contents = {(piece.digest, piece.dtype, piece.shape) for piece in pieces}
    return len(contents) == 1 and bool(pieces[0].digest)


def _is_same_everywhere(pieces: Sequence[PieceTensor], way: Placement) -> bool:
    """Return whether ranks that should hold the same in this way have equal bytes."""
    digests = {tuple(pieces[number].digest for number in choice.numbers) for choice in replicas(way.assembly)}
    return len(digests) == 1


def _grids(known: MeshGrid | None, pieces: int) -> Sequence[MeshGrid]:
    """Return the grid on which the pieces lie, or all on which they may."""
    return [known] if known else grids(pieces)


def _ways(on_grids: Sequence[MeshGrid], shapes: Sequence[tuple[int, ...]]) -> Iterator[Placement]:
    """Yield every way that the shapes allow; on each grid, those in blocks come last."""
    for grid in on_grids:
        plain = placements(grid, shapes, None)
        yield from plain
        for whole in sorted({way.assembly.shape for way in plain}):
            yield from block_placements(grid, shapes, whole)


def _as_told(grid: MeshGrid | None, shapes: Sequence[tuple[int, ...]], told: Told) -> Iterator[Placement]:
    """Yield the way that is told of every dimension of a mesh: on large ones, not all ways are tried."""
    kinds = [] if grid is None else [_PLAIN.fullmatch(told.get(name, "")) for name in grid.names]
    if grid is None or len(set(shapes)) > 1 or not all(kinds):
        return
    dimensions = tuple(
        Dimension(Held(kind["held"]), size, int(kind["axis"]) if kind["axis"] else None, name)
        for kind, size, name in zip(filter(None, kinds), grid.numbers.shape, grid.names, strict=True)
    )
    cut = [dimension for dimension in dimensions if dimension.axis is not None]
    if not all(_may_be_cut(shapes[0], dimension) for dimension in cut):
        return
    assembly = assembled(grid.numbers, shapes, dimensions)
    if assembly is not None:
        yield Placement(dimensions, assembly)


def _may_be_cut(shape: tuple[int, ...], dimension: Dimension) -> bool:
    """Return whether a piece has the axis that a dimension cuts, and in zigzag two equal chunks of it."""
    axis = dimension.axis
    return axis is not None and axis < len(shape) and (dimension.held is Held.SHARD or shape[axis] % 2 == 0)


def _problem(wanted: str, told: Told, candidates: Iterable[Placement], *, is_placed: bool) -> str:
    possible = _first_kinds(candidates)
    if wanted:
        return f"its pieces cannot be held as {wanted!r}; by their shapes: {possible}"
    if told and is_placed:
        return f"the dump tells {told_text(told)}, which is not among what its pieces allow: {possible}"
    if told:
        return f"the dump tells {told_text(told)}, and where the ranks are is not known (--mesh)"
    return f"how the ranks hold it is not known; by the shapes of its pieces: {possible}"


def _first_kinds(candidates: Iterable[Placement]) -> str:
    """Return the kinds of the first placements, which are the simplest; `none` if there are none."""
    kinds: dict[str, None] = {}
    for way in candidates:
        if len(kinds) == _KINDS_NAMED and way.kind not in kinds:
            return f"{', '.join(kinds)}, and others"
        kinds[way.kind] = None
    return ", ".join(kinds) or "none"
