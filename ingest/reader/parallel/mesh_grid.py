"""How some ranks lie on the mesh of their job, as a grid of places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingest.reader.parallel.mesh import Coordinates
from workers.arrays.sharded.placement import MeshGrid


def grid_of(places: Sequence[Coordinates]) -> MeshGrid | None:
    """Return the mesh of ranks, outer to inner; None if it is not known, or they do not fill a part of it.

    Axes come in the order in which ranks with consecutive numbers differ least: the one that varies fastest
    from rank to rank is the innermost.
    """
    if len(places) < 2 or not all(places):
        return None
    names = _axes_of(places)
    if not names:
        return None
    values = [sorted({place[name].rank for place in places}) for name in names]
    numbers = np.full([len(axis) for axis in values], -1)
    for piece, place in enumerate(places):
        index = tuple(axis.index(place[name].rank) for name, axis in zip(names, values, strict=True))
        numbers[index] = piece
    is_filled = numbers.size == len(places) and not (numbers < 0).any()
    return MeshGrid(tuple(names), numbers) if is_filled else None


def _axes_of(places: Sequence[Coordinates]) -> list[str]:
    """Return the axes along which ranks differ, outer to inner; none if a rank has no place on one of them.

    Of two axes along which ranks lie alike, such as tp and ep, the first one counts.
    """
    names = [name for name in places[0] if len({place[name].rank for place in places if name in place}) > 1]
    if any(name not in place for place in places for name in names):
        return []
    by_places = {tuple(place[name].rank for place in places): name for name in reversed(names)}
    # The axis that changes first when ranks are counted up is the innermost.
    return sorted(by_places.values(), key=lambda name: _first_change(places, name), reverse=True)


def _first_change(places: Sequence[Coordinates], name: str) -> int:
    return next(number for number, place in enumerate(places) if place[name].rank != places[0][name].rank)
