"""A tensor as a whole, put together from the pieces that ranks have of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.array_like import ArrayLike
from ingest.reader.parallel.mesh import Coordinates
from ingest.reader.parallel.told_placement import Told, grid_of, is_told, told_placement, told_text
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
from workers.store.consolidated.blocks import tensors_of

if TYPE_CHECKING:
    from ingest.reader.step import Step
    from ingest.reader.tensor import Tensor

#: What may be told of a dimension of a mesh, whatever the others are.
_PLAIN = re.compile(r"(?P<held>replicated|partial sum|mean|shard|zigzag)(?: (?P<axis>\d{1,9}))?")
#: Elements that are put together at a time.
_PIECE_NBYTES = 4 * MIB
#: The most ways that a message names: a large mesh has thousands, and to find all takes many seconds.
_KINDS_NAMED = 8
_HINT = 'For example: unsharded("shard 0"), "replicated", "partial sum", "replicated, shard 1".'


@dataclass(frozen=True, slots=True)
class _Elements:
    tensor: Tensor

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self.tensor.elements(start, stop)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class UnshardedTensor(ArrayLike):
    """A whole tensor. Its elements are read from the pieces of all ranks when they are asked for."""

    pieces: tuple[Tensor, ...]
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


def pieces_of(step: Step, row: int) -> tuple[list[Tensor], list[Coordinates]]:
    """Return the same tensor of the same step of every rank that has it, by rank, and where these ranks are.

    Reads the index of the step of every rank.

    Raises:
        UsageError: the tensor was not opened through a store.
    """
    if (source := step.catalog) is None:
        raise UsageError("other ranks are not known: open the tensor through a store")
    rows, keys = tensors_of(step.tables)
    key = keys[rows.tolist().index(row)]
    pieces: list[Tensor] = []
    for rank in source.ranks:
        try:
            own = step if rank == step.key.rank else source.step(rank, step.key.step)
        except UsageError:  # this rank does not have the step
            continue
        rows, keys = tensors_of(own.tables)
        if key in keys:
            pieces.append(own.tensor_of(int(rows[keys.index(key)])))
    places = source.coordinates([piece.rank for piece in pieces])
    return pieces, [places.get(piece.rank, {}) for piece in pieces]


def unshard(pieces: Sequence[Tensor], places: Sequence[Coordinates], wanted: str = "") -> UnshardedTensor:
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
    name, told = pieces[0].name, told_placement(pieces[0].attributes)
    known = grid_of(places, told)
    on_grids = [known] if known else grids(len(pieces))
    is_equal = pieces[0].digest and len({(own.digest, own.dtype, own.shape) for own in pieces}) == 1
    choices: list[tuple[object, Callable[[Placement], bool], str]] = [
        (wanted, lambda way: way.kind == wanted, "given"),
        (told and known, lambda way: is_told(way, told), f"told: {told_text(told)}"),
        (is_equal, lambda way: way.kind == "replicated", "equal bytes"),
    ]
    fitting, why = next(((fits, why) for is_so, fits, why in choices if is_so), (None, ""))
    possible = chain(_as_told(known, shapes, told), _ways(on_grids, shapes))
    chosen = next(filter(fitting, possible), None) if fitting else None
    if chosen is None:
        problem = _problem(wanted, told, _ways(on_grids, shapes), is_placed=known is not None)
        raise UsageError(f"{name}: {problem}", hint=_HINT)
    # Ranks that should hold the same in this way have equal bytes.
    held = {tuple(pieces[number].digest for number in same.numbers) for same in replicas(chosen.assembly)}
    if not wanted and len(held) > 1:
        raise UsageError(
            f"{name}: the dump tells {told_text(told)}, and ranks hold different bytes",
            hint='`dump-ingest layout` tells more; placement "replicated" takes the piece of the first rank.',
        )
    return UnshardedTensor(tuple(pieces), chosen, why)


def _ways(on_grids: Sequence[MeshGrid], shapes: Sequence[tuple[int, ...]]) -> Iterator[Placement]:
    """Yield every way that the shapes allow; on each grid, those in blocks come last."""
    for grid in on_grids:
        plain = placements(grid, shapes, None)
        yield from plain
        for whole in sorted({way.assembly.shape for way in plain}):
            yield from block_placements(grid, shapes, whole)


def _as_told(grid: MeshGrid | None, shapes: Sequence[tuple[int, ...]], told: Told) -> Iterator[Placement]:
    """Yield the way that is told of every dimension of a mesh: on large ones, not all ways are tried."""
    if grid is None or len(set(shapes)) > 1:
        return
    kinds = [_PLAIN.fullmatch(told.get(name, "")) for name in grid.names]
    if not all(kinds):
        return
    dimensions = tuple(
        Dimension(Held(kind["held"]), size, int(kind["axis"]) if kind["axis"] else None, name)
        for kind, size, name in zip(filter(None, kinds), grid.numbers.shape, grid.names, strict=True)
    )
    if not all(_can_cut(own, shapes[0]) for own in dimensions):
        return
    assembly = assembled(grid.numbers, shapes, dimensions)
    if assembly is not None:
        yield Placement(dimensions, assembly)


def _can_cut(dimension: Dimension, shape: tuple[int, ...]) -> bool:
    """Return whether a piece has the axis that a dimension cuts, and in zigzag two equal chunks of it."""
    if dimension.axis is None:
        return True
    if not 0 <= dimension.axis < len(shape):
        return False
    return dimension.held is Held.SHARD or shape[dimension.axis] % 2 == 0


def _problem(wanted: str, told: Told, candidates: Iterable[Placement], *, is_placed: bool) -> str:
    kinds: dict[str, None] = {}  # those of the first placements, which are the simplest
    for way in candidates:
        kinds[way.kind] = None
        if len(kinds) > _KINDS_NAMED:
            break
    named = ", ".join(list(kinds)[:_KINDS_NAMED]) or "none"
    possible = named + ", and others" * (len(kinds) > _KINDS_NAMED)
    if wanted:
        return f"its pieces cannot be held as {wanted!r}; by their shapes: {possible}"
    if told and is_placed:
        return f"the dump tells {told_text(told)}, which is not among what its pieces allow: {possible}"
    if told:
        return f"the dump tells {told_text(told)}, and where the ranks are is not known (--mesh)"
    return f"how the ranks hold it is not known; by the shapes of its pieces: {possible}"
