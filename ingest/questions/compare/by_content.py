"""Tensors whose digests show that all ranks of both sides hold the same bytes: nothing is read for them."""

from __future__ import annotations

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.placement.decide import Certainty, Decision
from workers.arrays.sharded.assembly import Assembly, Piece, Same
from workers.arrays.sharded.placement import Dimension, Held, Placement
from workers.arrays.sharded.placement_search import ScoredWay, Search


def same_content(a: HeldTensors, tensor_a: int, b: HeldTensors, tensor_b: int) -> Decision | None:
    """Return that a tensor is replicated on both sides, if all pieces have equal digests; else None."""
    digests = {*a.digests(tensor_a), *b.digests(tensor_b)}
    if len(digests) != 1 or not any(next(iter(digests))[0]):
        return None
    way = ScoredWay(replicated_on(a, tensor_a), replicated_on(b, tensor_b), 0.0, 1.0, 0.0)
    return Decision(way, Certainty.CERTAIN, "all pieces have the same digest", search=Search((way,)))


def replicated_on(side: HeldTensors, tensor: int) -> Placement:
    """Return the placement of a tensor of which all ranks of a side hold the same."""
    shapes = side.shapes(tensor)
    if len(shapes) == 1:
        return Placement((), Piece(0, shapes[0]))
    parts: tuple[Assembly, ...] = tuple(Piece(number, shape) for number, shape in enumerate(shapes))
    grid = side.pieces(tensor).grid
    names = grid.names if grid is not None and len(grid.names) == 1 else ("",)
    return Placement((Dimension(Held.REPLICATED, len(shapes), None, names[0]),), Same(parts))
