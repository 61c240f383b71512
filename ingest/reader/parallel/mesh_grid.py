"""How some ranks lie on the mesh of their job, as a grid of places."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from ingest.reader.parallel.mesh import Coordinates
from workers.arrays.sharded.placement import MeshGrid

#: The axis of a tensor in a kind of placement, such as `shard 1`.
_CUT_AXIS = re.compile(r"\d+")


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
    values = [sorted({place[name].rank for place in places}) for name in names]
    numbers = np.full([len(axis) for axis in values], -1)
    for piece, place in enumerate(places):
        index = tuple(axis.index(place[name].rank) for name, axis in zip(names, values, strict=True))
        numbers[index] = piece
    is_filled = numbers.size == len(places) and not (numbers < 0).any()
    return MeshGrid(tuple(names), numbers) if is_filled else None


def _axes_of(places: Sequence[Coordinates], told: Mapping[str, str]) -> list[str]:
    """Return the axes along which ranks differ, outer to inner; none if a rank has no place on one of them.

    An axis on which the place follows from those on others does not count: tp and ep along which ranks lie
    alike, or tp beside attn_tp and attn_dp, which are its parts.
    """
    known = [name for name in dict.fromkeys((*told, *places[0])) if any(name in place for place in places)]
    if any(name not in place for place in places for name in known):
        return []
    names: list[str] = []
    for name in known:
        if len({place[name].rank for place in places}) > 1 and _is_filled(places, [*names, name]):
            names.append(name)
    # The axis that changes first when ranks are counted up is the innermost.
    names.sort(key=lambda name: _first_change(places, name), reverse=True)
    return _as_told(names, told)


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


def _first_change(places: Sequence[Coordinates], name: str) -> int:
    return next(number for number, place in enumerate(places) if place[name].rank != places[0][name].rank)
