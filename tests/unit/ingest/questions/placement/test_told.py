"""Decisions against what the dump tells."""

import numpy as np

from ingest.questions.placement.decide import Certainty, Decision, contradicts, decide, settled_by
from tests.in_memory import InMemory, Values
from workers.arrays.sharded.placement import MeshGrid
from workers.arrays.sharded.placement_search import Pieces, search

RNG = np.random.default_rng(11)
WHOLE, NOISE = RNG.normal(size=(2, 6, 6)).astype(np.float32)
GRID = MeshGrid(("tp",), np.arange(2))


def decided(*parts: Values) -> Decision:
    pieces = Pieces(tuple(part.shape for part in parts), (0, 1), GRID)
    found = search(pieces, Pieces((WHOLE.shape,), (0,)), [InMemory(p) for p in parts], [InMemory(WHOLE)])
    return decide(found, ("float32", "float32"))


def test_what_values_leave_open_is_settled() -> None:
    open_one = decided(NOISE, NOISE.T)
    assert open_one.certainty is Certainty.OPEN
    settled = settled_by({"tp": "partial sum"}, open_one)
    assert settled.way is not None
    assert (str(settled.way.a), settled.certainty) == ("tp: partial sum", Certainty.TOLD)
    assert settled_by({}, open_one) is open_one
    assert settled_by({"tp": "shard 0"}, open_one) is open_one  # the shapes do not allow that


def test_what_values_show_for_certain_is_not_overruled() -> None:
    certain = decided(WHOLE - NOISE, NOISE)
    assert settled_by({"tp": "replicated"}, certain) is certain
    assert contradicts({"tp": "replicated"}, certain)
    assert not contradicts({"tp": "partial sum"}, certain)
    assert not contradicts({"tp": "replicated"}, decided(NOISE, NOISE.T))


def test_on_a_mesh_without_names_kinds_decide() -> None:
    """As in files that tell how they are held, and not on which mesh: none of the ways fits the values."""
    half_reduced = [np.concatenate([WHOLE[:3], NOISE[3:]]), np.concatenate([NOISE[:3], WHOLE[3:] / 3])]
    pieces = Pieces(tuple(part.shape for part in half_reduced), (0, 1))
    ways = search(
        pieces, Pieces((WHOLE.shape,), (0,)), [InMemory(p) for p in half_reduced], [InMemory(WHOLE)]
    )
    settled = settled_by({"tp": "replicated"}, decide(ways, ("float32", "float32")))
    assert settled.way is not None
    assert (str(settled.way.a), settled.certainty) == ("replicated", Certainty.TOLD)
