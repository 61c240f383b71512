"""How ranks hold a tensor before any element is read: by equal digests, or as marginals propose.

Marginals refute all plain ways but one with some thousand numbers, of which a step of a rank has all in one
request. The elements then have to confirm that way, in the same pass that measures the difference. Without
them, because the tensors were removed, the marginals are the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.compare.rounding import relative_difference
from ingest.questions.placement.decide import Certainty, Decision, fit_limit
from workers.arrays.comparison import Metrics
from workers.arrays.sharded.assembly import Assembly, Piece, Same
from workers.arrays.sharded.marginal_placement import MarginalWay, held_as, ways_held
from workers.arrays.sharded.placement import Dimension, Held, MeshGrid, Placement, placements
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


@dataclass(frozen=True, slots=True)
class MarginalProposal:
    """The only plain way that marginals leave."""

    decision: Decision
    others: float
    """By how much the marginals of the next best way are off; infinite if there is none."""
    is_shown: bool
    """Whether the marginals also tell the order of what is cut."""


def propose(a: HeldTensors, tensor_a: int, b: HeldTensors, tensor_b: int) -> MarginalProposal | None:
    """Return the way that marginals leave; None if they are not known, leave several or none.

    Of replicas that differ, the worst has to be found by elements; and a mesh of several dimensions has more
    ways than marginals are compared for.
    """
    pieces, whole = a.pieces(tensor_a), b.pieces(tensor_b)
    name = _dimension(pieces.grid, len(pieces.shapes))
    if name is None or (len(whole.shapes) > 1 and not whole.identical):
        return None
    of_whole = b.marginals(tensor_b, 0)
    of_pieces = [a.marginals(tensor_a, place) for place in range(len(pieces.shapes))]
    if not of_whole or not all(of_pieces):
        return None
    ways = ways_held(of_pieces, pieces.shapes, of_whole, whole.shapes[0])
    best = held_as(ways)
    if best is None or (best.held is Held.REPLICATED and not pieces.identical):
        return None
    placement = _placement(best, name, pieces.shapes, whole.shapes[0])
    if placement is None:
        return None
    others = min((way.error for way in ways[1:]), default=math.inf)
    scored = ScoredWay(placement, replicated_on(b, tensor_b), best.error)
    text = f"the marginals agree within {best.error:.1e}; {_beyond(others)}"
    decision = Decision(scored, Certainty.BY_MARGINALS, text, search=Search((scored,)))
    return MarginalProposal(decision, others, is_shown=best.axis is None or best.axis in of_whole)


def confirmed(proposal: MarginalProposal, metrics: Metrics, dtypes: Sequence[str]) -> Decision | None:
    """Return the decision that elements confirm; None if they do not agree in the proposed way."""
    error = relative_difference(metrics)
    way = proposal.decision.way
    if way is None or error > fit_limit(dtypes):
        return None
    factor = metrics.cosine * metrics.norm_ratio
    rest = math.sqrt(max(1.0 - metrics.cosine**2, 0.0))
    scored = replace(way, error=error, factor=factor, error_besides_factor=rest)
    text = f"relative error {error:.1e}; by marginals, {_beyond(proposal.others)}"
    return Decision(scored, Certainty.CERTAIN, text, search=Search((scored,)))


def _beyond(others: float) -> str:
    if math.isinf(others):
        return "the shapes allow no other plain way"
    return f"every other plain way is off by {others:.1e} or more"


def _dimension(grid: MeshGrid | None, count: int) -> str | None:
    """Return the name of the only dimension along which pieces lie in order; None if there are several."""
    if grid is None:
        return ""
    is_plain = len(grid.names) == 1 and np.array_equal(grid.numbers, np.arange(count))
    return grid.names[0] if is_plain else None


def _placement(
    way: MarginalWay, name: str, shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]
) -> Placement | None:
    if len(shapes) == 1:
        return None
    grid = MeshGrid((name,), np.arange(len(shapes)))
    fitting = (
        placement
        for placement in placements(grid, shapes, whole)
        if (placement.dimensions[0].held, placement.dimensions[0].axis) == (way.held, way.axis)
    )
    return next(fitting, None)
