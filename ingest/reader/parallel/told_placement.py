"""What a dump itself tells about how ranks hold a tensor: annotations of SGLang's dumper, and DTensors.

    meta.dims          "b s h[tp]", "b s h[tp:partial]", "b s[cp:zigzag] h # tp:replicated"
                       (sglang/srt/debug_utils/comparator/dims_spec)
    tensor.placements  "Shard(0)", "Replicate()", "Partial(sum)", with mesh_dim_names

What is told is used where values leave it open, and checked where they do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from workers.arrays.sharded.placement import Held, Placement

Told: TypeAlias = Mapping[str, str]
"""By dimension of the mesh, how the tensor is held along it, as `Dimension.kind` spells it."""

_DIMENSION = re.compile(r"(?P<name>\w+)(?:\[(?P<held>[^\]]*)\])?")
_REPLICATED = re.compile(r"(\w+):replicated\b")
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
    return _of_dims(dims) if isinstance(dims, str) else {}


def _of_dims(dims: str) -> dict[str, str]:
    axes, _, remarks = dims.partition("#")
    told = dict.fromkeys(_REPLICATED.findall(remarks), Held.REPLICATED.value)
    for axis, match in enumerate(_DIMENSION.finditer(axes)):
        for modifier in filter(None, (match["held"] or "").split(",")):
            name, *qualifiers = modifier.strip().split(":")
            if "partial" in qualifiers:
                told[name] = Held.PARTIAL_SUM.value
            elif "zigzag" in qualifiers:
                told[name] = f"{Held.ZIGZAG.value} {axis}"
            else:
                told[name] = f"{Held.SHARD.value} {axis}"
    return told


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
