"""What a dump tells of how ranks hold a tensor, SGLang's annotations and DTensors; the grid of the ranks.

    meta.dims          "b s h[tp]", "t[cp:zigzag,sp] 1 (heads*d)[tp]", "b s h[tp:partial] # cp:replicated"
                       (sglang/srt/debug_utils/comparator/dims_spec), and, from older versions,
                       "b s(cp,zigzag) h(tp,partial)"
    tensor.placements  "Shard(0)", "Replicate()", "Partial(sum)", with mesh_dim_names

What is told is used where values leave it open, and checked where they do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.parallel.mesh import Coordinates
from workers.arrays.sharded.placement import Dimension, Held, MeshGrid, Placement

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
    """Yield what an axis of an annotation tells, by dimension of the mesh."""
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
    """Yield the dimensions of the mesh along which all ranks hold the same."""
    for remark in remarks.split():
        match = _REMARK.fullmatch(remark)
        if match is None:
            raise _NotUnderstood
        if match["replicated"]:
            yield match["replicated"]


def _of_dtensor(tensor: Mapping[str, Any]) -> dict[str, str]:
    names, placements = tensor.get("mesh_dim_names"), tensor.get("placements")
    if not isinstance(names, list) or not isinstance(placements, list) or len(names) != len(placements):
        return {}
    told = {}
    for name, text in zip(names, placements, strict=True):
        match = _PLACEMENT.fullmatch(str(text))
        if match is not None:
            shard = Held.STRIDED if match["held"] == "_StridedShard" else Held.SHARD
            told[str(name)] = f"{shard.value} {match['axis']}"
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
    return _as_told(sorted(names, key=first_change, reverse=True), told)


def _is_filled(places: Sequence[Coordinates], names: Sequence[str]) -> bool:
    """Return whether ranks are at all places that these axes have together."""
    sizes = [len({place[name].rank for place in places}) for name in names]
    return len({tuple(place[name].rank for name in names) for place in places}) == math.prod(sizes)


def _as_told(names: Sequence[str], told: Mapping[str, str]) -> list[str]:
    """Return axes of the mesh with those that cut one axis of the tensor in the order that was told."""
    ordered = list(names)
    cut: dict[str, list[str]] = {}
    for name, kind in told.items():
        if name in names and (match := _CUT_AXIS.search(kind)):
            cut.setdefault(match[0], []).append(name)
    for together in cut.values():
        free = sorted(ordered.index(name) for name in together)
        for place, name in zip(free, together, strict=True):
            ordered[place] = name
    return ordered
