"""A tensor as a whole, put together from the pieces that ranks have of it; what a dump tells of these.

    meta.dims          "b s h[tp]", "t[cp:zigzag,sp] 1 (heads*d)[tp]", "b s h[tp:partial] # cp:replicated"
                       (sglang/srt/debug_utils/comparator/dims_spec), and, from older versions,
                       "b s(cp,zigzag) h(tp,partial)"
    tensor.placements  "Shard(0)", "Replicate()", "Partial(sum)", with mesh_dim_names

What is told is used where values leave it open, and checked where they do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.array_like import ArrayLike
from ingest.reader.choice import format_ranges
from ingest.reader.mesh import Coordinates
from ingest.reader.text import shape_text
from workers.arrays.sharded.assembly import Elements, pieces_read, replicas
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
from workers.model import MIB, grouped
from workers.store.consolidated.blocks import tensors_of

if TYPE_CHECKING:
    from ingest.reader.step import Step
    from ingest.reader.tensor import Tensor


Told: TypeAlias = Mapping[str, str]
"""By dimension of the mesh, how the tensor is held along it, as `Dimension.kind` spells it.

Of several dimensions that cut one axis, the outer comes first."""

_NOTHING: Told = MappingProxyType({})
_AXIS = re.compile(r"(?P<name>\w+|\([^()\s]+\))(?:\[(?P<held>[^\]\s]+)\]|\((?P<older>[^()\s]+)\))?")
_REMARK = re.compile(r"(?P<replicated>\w+):replicated|dp:=\w+")
_QUALIFIERS = frozenset({"sharded", "natural", "zigzag", "partial"})
#: The name of the axis of packed sequences.
_TOKENS = "t"
_PLACEMENT = re.compile(r"(?P<held>Shard|_StridedShard)\((?:dim=)?(?P<axis>\d{1,9})\b.*\)")
_HELD = {
    "Replicate()": Held.REPLICATED.value,
    "Partial(sum)": Held.PARTIAL_SUM.value,
    "Partial()": Held.PARTIAL_SUM.value,
    "Partial(avg)": Held.MEAN.value,
}
#: The axis of a tensor in a kind of placement, such as `shard 1`.
_CUT_AXIS = re.compile(r"\d+")


def told_placement(attributes: Mapping[str, Any]) -> Told:
    """Read the placement from the attributes of a tensor; empty if they have none that is understood."""
    tensor = attributes.get("tensor")
    if isinstance(tensor, Mapping) and (told := _of_dtensor(tensor)):
        return told
    meta = attributes.get("meta")
    dims = meta.get("dims") if isinstance(meta, Mapping) else None
    return _of_dims(dims) if isinstance(dims, str) else _NOTHING


class _NotUnderstood(Exception):
    """An annotation that SGLang refuses, or whose meaning is not known."""


@lru_cache(maxsize=4096)
def _of_dims(dims: str) -> Told:
    axes, _, remarks = dims.partition("#")
    try:
        pairs = [pair for axis, text in enumerate(axes.split()) for pair in _of_axis(axis, text)]
        pairs += [(name, Held.REPLICATED.value) for name in _replicated(remarks)]
    except _NotUnderstood:
        return _NOTHING
    told = dict(pairs)
    return MappingProxyType(told) if axes.strip() and len(told) == len(pairs) else _NOTHING


def _of_axis(axis: int, text: str) -> Iterator[tuple[str, str]]:
    match = _AXIS.fullmatch(text)
    if match is None:
        raise _NotUnderstood
    parts = match.groupdict(default="")
    for number, (name, qualifiers) in enumerate(_modifiers(parts["held"] or parts["older"])):
        if {"zigzag", "partial"} <= qualifiers or ("zigzag" in qualifiers and number):
            raise _NotUnderstood  # chunks are put into order after what all of these cut is joined
        if "partial" in qualifiers:
            yield name, Held.PARTIAL_SUM.value
        elif "zigzag" in qualifiers:
            lengths = (0,) if parts["name"] == _TOKENS else ()  # how long sequences are is not told
            yield name, Dimension(Held.ZIGZAG, 0, axis, lengths=lengths).kind
        else:
            yield name, Dimension(Held.SHARD, 0, axis).kind


def _modifiers(text: str) -> list[tuple[str, set[str]]]:
    """Read `cp:zigzag,sp`, and `cp,zigzag` of older versions: dimensions that cut an axis, and how."""
    modifiers: list[tuple[str, set[str]]] = []
    for part in filter(None, text.split(",")):
        name, *qualifiers = re.split("[:+]", part)
        if modifiers and not qualifiers and name in _QUALIFIERS:
            modifiers[-1][1].add(name)
        else:
            modifiers.append((name, set(qualifiers)))
    if not all(qualifiers <= _QUALIFIERS for _, qualifiers in modifiers):
        raise _NotUnderstood
    return modifiers


def _replicated(remarks: str) -> Iterator[str]:
    for remark in remarks.split():
        match = _REMARK.fullmatch(remark)
        if match is None:
            raise _NotUnderstood
        if match["replicated"]:
            yield match["replicated"]


def shard_of(placement: object) -> tuple[Held, int] | None:
    """Return how a placement of a DTensor, such as `Shard(0)`, cuts which axis; None if it cuts none."""
    match = _PLACEMENT.fullmatch(str(placement))
    if match is None:
        return None
    return Held.STRIDED if match["held"] == "_StridedShard" else Held.SHARD, int(match["axis"])


def _of_dtensor(tensor: Mapping[str, Any]) -> dict[str, str]:
    names, placements = tensor.get("mesh_dim_names"), tensor.get("placements")
    if not isinstance(names, list) or not isinstance(placements, list) or len(names) != len(placements):
        return {}
    told = {}
    for name, text in zip(names, placements, strict=True):
        if (shard := shard_of(text)) is not None:
            held, axis = shard
            told[str(name)] = f"{held.value} {axis}"
        elif str(text) in _HELD:
            told[str(name)] = _HELD[str(text)]
        else:
            return {}
    return told


def may_be_told(placement: Placement, told: Told) -> bool:
    """Return whether a placement is one that what was told may mean.

    An annotation has no word for blocks, and calls a single sequence in zigzag one of several.
    """

    def may_mean(kind: str, dimension: Dimension) -> bool:
        if dimension.held is Held.BLOCKS:
            return kind in {dimension.kind, Dimension(Held.SHARD, 0, dimension.axis).kind}
        if dimension.held is Held.ZIGZAG:
            return kind.startswith(f"{Held.ZIGZAG.value} {dimension.axis}")
        return kind == dimension.kind

    named = (dimension for dimension in placement.dimensions if dimension.name)
    return all(may_mean(told.get(dimension.name, dimension.kind), dimension) for dimension in named)


def is_told(placement: Placement, told: Told) -> bool:
    """Return whether a placement is what was told, as far as its dimensions have names."""
    named = (dimension for dimension in placement.dimensions if dimension.name)
    return all(told.get(dimension.name, dimension.kind) == dimension.kind for dimension in named)


def told_text(told: Told) -> str:
    """Return a placement as text, such as `tp: shard 2`."""
    return ", ".join(f"{name}: {kind}" for name, kind in told.items())


def grid_of(places: Sequence[Coordinates], told: Mapping[str, str] | None = None) -> MeshGrid | None:
    """Return the mesh of ranks, outer to inner; None if it is not known, or they do not fill a part of it.

    Axes come in the order in which ranks with consecutive numbers differ least: the one that varies fastest
    from rank to rank is the innermost.

    Args:
        places: of the ranks.
        told: what the dump tells of a tensor, by axis (`told_placement`). Its axes count before others along
            which ranks lie alike, and those that cut one axis of the tensor come in this order.
    """
    if len(places) < 2 or not all(places):
        return None
    names = _axes_of(places, told or {})
    if not names:
        return None
    numbers = _numbers_on(names, places)
    is_filled = numbers.size == len(places) and not (numbers < 0).any()
    return MeshGrid(tuple(names), numbers) if is_filled else None


def _numbers_on(names: Sequence[str], places: Sequence[Coordinates]) -> npt.NDArray[np.int64]:
    """Return the number of the place at each point of a mesh with these axes; -1 where there is none."""
    values = [sorted({place[name].rank for place in places}) for name in names]
    numbers = np.full([len(axis) for axis in values], -1)
    for number, place in enumerate(places):
        index = tuple(axis.index(place[name].rank) for name, axis in zip(names, values, strict=True))
        numbers[index] = number
    return numbers


def _axes_of(places: Sequence[Coordinates], told: Mapping[str, str]) -> list[str]:
    """Return the axes along which ranks differ, outer to inner; none if a rank has no place on one of them.

    An axis on which the place follows from those on others does not count: tp and ep along which ranks lie
    alike, or tp beside attn_tp and attn_dp, which are its parts.
    """
    on_any = set[str]().union(*places)
    known = [name for name in dict.fromkeys((*told, *places[0])) if name in on_any]
    if any(name not in place for place in places for name in known):
        return []
    names: list[str] = []
    for name in known:
        if len({place[name].rank for place in places}) > 1 and _is_filled(places, [*names, name]):
            names.append(name)

    def first_change(name: str) -> int:
        return next(at for at, place in enumerate(places) if place[name].rank != places[0][name].rank)

    # The axis that changes first when ranks are counted up is the innermost.
    return _axes_as_told(sorted(names, key=first_change, reverse=True), told)


def _is_filled(places: Sequence[Coordinates], names: Sequence[str]) -> bool:
    sizes = [len({place[name].rank for place in places}) for name in names]
    return len({tuple(place[name].rank for name in names) for place in places}) == math.prod(sizes)


def _axes_as_told(names: Sequence[str], told: Mapping[str, str]) -> list[str]:
    """Return axes of the mesh with those that cut one axis of the tensor in the order that was told."""
    ordered = list(names)
    cut = grouped(
        (match[0], name) for name, kind in told.items() if name in names and (match := _CUT_AXIS.search(kind))
    )
    for together in cut.values():
        free = sorted(ordered.index(name) for name in together)
        for place, name in zip(free, together, strict=True):
            ordered[place] = name
    return ordered


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

    stored = elements


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
    held = {
        tuple(pieces[number].digest for number in pieces_read(same)) for same in replicas(chosen.assembly)
    }
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
