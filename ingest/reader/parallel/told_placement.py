"""What a dump itself tells about how ranks hold a tensor: annotations of SGLang's dumper, and DTensors.

    meta.dims          "b s h[tp]", "t[cp:zigzag,sp] 1 (heads*d)[tp]", "b s h[tp:partial] # cp:replicated"
                       (sglang/srt/debug_utils/comparator/dims_spec), and, from older versions,
                       "b s(cp,zigzag) h(tp,partial)"
    tensor.placements  "Shard(0)", "Replicate()", "Partial(sum)", with mesh_dim_names

What is told is used where values leave it open, and checked where they do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from workers.arrays.sharded.placement import Dimension, Held, Placement

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


class _Modifier(NamedTuple):
    """A dimension of the mesh that cuts an axis, and how: `cp:zigzag`."""

    name: str
    qualifiers: frozenset[str]


def _of_axis(axis: int, text: str) -> Iterator[tuple[str, str]]:
    """Yield what an axis of an annotation tells, by dimension of the mesh."""
    match = _AXIS.fullmatch(text)
    if match is None:
        raise _NotUnderstood
    for number, modifier in enumerate(_modifiers(match["held"] or match["older"] or "")):
        if {"zigzag", "partial"} <= modifier.qualifiers or ("zigzag" in modifier.qualifiers and number):
            raise _NotUnderstood  # chunks are put into order after what all of these cut is joined
        if "partial" in modifier.qualifiers:
            yield modifier.name, Held.PARTIAL_SUM.value
        elif "zigzag" in modifier.qualifiers:
            lengths = (0,) if match["name"] == _TOKENS else ()  # how long sequences are is not told
            yield modifier.name, Dimension(Held.ZIGZAG, 0, axis, lengths=lengths).kind
        else:
            yield modifier.name, Dimension(Held.SHARD, 0, axis).kind


def _modifiers(text: str) -> list[_Modifier]:
    """Read `cp:zigzag,sp`, and `cp,zigzag` of older versions."""
    modifiers: list[_Modifier] = []
    for part in filter(None, text.split(",")):
        name, *qualifiers = re.split("[:+]", part)
        if modifiers and not qualifiers and name in _QUALIFIERS:
            modifiers[-1] = _Modifier(modifiers[-1].name, modifiers[-1].qualifiers | {name})
        else:
            modifiers.append(_Modifier(name, frozenset(qualifiers)))
    if not all(modifier.qualifiers <= _QUALIFIERS for modifier in modifiers):
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
    return all(
        _may_mean(told.get(dimension.name, dimension.kind), dimension)
        for dimension in placement.dimensions
        if dimension.name
    )


def _may_mean(kind: str, dimension: Dimension) -> bool:
    if dimension.held is Held.BLOCKS:
        return kind in {dimension.kind, Dimension(Held.SHARD, 0, dimension.axis).kind}
    if dimension.held is Held.ZIGZAG:
        return kind.startswith(f"{Held.ZIGZAG.value} {dimension.axis}")
    return kind == dimension.kind


def is_told(placement: Placement, told: Told) -> bool:
    """Return whether a placement is what was told, as far as its dimensions have names."""
    return all(
        told.get(dimension.name, dimension.kind) == dimension.kind
        for dimension in placement.dimensions
        if dimension.name
    )


def told_text(told: Told) -> str:
    """Return a placement as text, such as `tp: shard 2`."""
    return ", ".join(f"{name}: {kind}" for name, kind in told.items())
