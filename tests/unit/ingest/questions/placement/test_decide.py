"""Which way is taken, and how certain that is."""

import numpy as np
import pytest

from ingest.questions.placement.decide import (
    Certainty,
    Decision,
    contradicts,
    decide,
    describe,
    explain_difference,
    fit_limit,
    settled_by,
)
from tests.in_memory import InMemory, Values, search_in
from workers.arrays.sharded.placement import MeshGrid
from workers.arrays.sharded.placement_search import Pieces, search

RNG = np.random.default_rng(5)
WHOLE = RNG.normal(size=(6, 4)).astype(np.float32)
NOISE = RNG.normal(size=WHOLE.shape).astype(np.float32)


def decided(a: list[Values], b: Values) -> tuple[str, Certainty]:
    decision = decide(search_in(a, [b]), ("float32", "float32"))
    return describe(decision.way) if decision.way else "?", decision.certainty


@pytest.mark.parametrize(
    ("a", "expected"),
    [
        ([WHOLE, WHOLE], ("replicated", Certainty.CERTAIN)),
        ([WHOLE, WHOLE * np.float32(1 + 1e-6)], ("replicated", Certainty.CERTAIN)),
        ([WHOLE - NOISE, NOISE], ("partial sum", Certainty.CERTAIN)),
        ([WHOLE * 2, WHOLE * 2], ("replicated", Certainty.CERTAIN)),  # but for a factor
        (list(np.split(NOISE, 2)), ("shard 0", Certainty.BY_SHAPE)),
        ([NOISE, NOISE], ("replicated", Certainty.BY_SHAPE)),
        ([NOISE, NOISE[::-1]], ("?", Certainty.OPEN)),
        ([WHOLE + NOISE / 10, WHOLE], ("replicated", Certainty.LIKELY)),
        ([np.ones((5, 5), np.float32)], ("?", Certainty.OPEN)),
    ],
)
def test_decisions(a: list[Values], expected: tuple[str, Certainty]) -> None:
    shown, certainty = decided(a, WHOLE)
    assert (shown, certainty) == expected or (certainty is Certainty.LIKELY is expected[1])


def test_partial_sums_that_do_not_quite_fit_are_no_mean() -> None:
    """A sum of pieces and their mean differ by a factor alone, so no factor tells the one from the other."""
    off = WHOLE + NOISE * np.float32(1.5e-3)
    half = RNG.normal(size=WHOLE.shape).astype(np.float32)
    assert decided([off - half, half], WHOLE) == ("partial sum", Certainty.LIKELY)


def test_of_ways_that_fit_equally_the_simplest_is_taken_and_the_others_are_named() -> None:
    zeros = np.zeros((4, 4), np.float32)
    halves = [zeros[:2, :2]] * 4
    decision = decide(search_in(halves, [zeros]), ("float32", "float32"))
    assert decision.certainty is Certainty.OPEN
    assert decision.also
    assert decision.fits
    assert "also fits" in decision.explanation


def test_narrow_types_may_be_farther_apart() -> None:
    assert fit_limit(["float32"]) < fit_limit(["bfloat16", "float32"]) <= 0.25
    assert fit_limit(["int64", "no type"]) == fit_limit(["float32"])


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([WHOLE * 2, WHOLE * 2], "it is 2 times B"),
        ([-WHOLE, -WHOLE], "it is -1 times B"),
        ([WHOLE, WHOLE], ""),
        ([WHOLE[3:], WHOLE[:3]], "piece 0 holds positions 3 to 5 of axis 0 instead of 0 to 2"),
        ([WHOLE[:3], WHOLE[:3]], "several ranks hold the same part"),
        ([WHOLE + 1, WHOLE + 1], ""),
    ],
)
def test_a_difference_is_explained_by_factors_and_parts(parts: list[Values], text: str) -> None:
    told = explain_difference(decide(search_in(parts, [WHOLE]), ("float32", "float32")))
    assert text in told
    assert bool(text) == bool(told)


def of_pieces(*parts: Values, grid: MeshGrid | None = None) -> Decision:
    shapes = tuple(part.shape for part in parts)
    pieces = Pieces(shapes, (0, 1)) if grid is None else Pieces(shapes, (0, 1), grid)
    found = search(pieces, Pieces((WHOLE.shape,), (0,)), [InMemory(p) for p in parts], [InMemory(WHOLE)])
    return decide(found, ("float32", "float32"))


GRID = MeshGrid(("tp",), np.arange(2))
UNLIKE = RNG.normal(size=WHOLE.shape).astype(np.float32)


def test_what_values_leave_open_the_dump_settles() -> None:
    open_one = of_pieces(NOISE, UNLIKE, grid=GRID)
    assert open_one.certainty is Certainty.OPEN
    settled = settled_by({"tp": "partial sum"}, open_one)
    assert settled.way is not None
    assert (str(settled.way.a), settled.certainty) == ("tp: partial sum", Certainty.TOLD)
    assert settled_by({}, open_one) is open_one
    assert settled_by({"tp": "shard 0"}, open_one) is open_one  # the shapes do not allow that


def test_what_values_show_for_certain_the_dump_does_not_overrule() -> None:
    certain = of_pieces(WHOLE - NOISE, NOISE, grid=GRID)
    assert settled_by({"tp": "replicated"}, certain) is certain
    assert contradicts({"tp": "replicated"}, certain)
    assert not contradicts({"tp": "partial sum"}, certain)
    assert not contradicts({"tp": "replicated"}, of_pieces(NOISE, UNLIKE, grid=GRID))


def test_on_a_mesh_without_names_kinds_decide() -> None:
    """As in files that tell how they are held, and not on which mesh: none of the ways fits the values."""
    half_reduced = [np.concatenate([WHOLE[:3], NOISE[3:]]), np.concatenate([NOISE[:3], WHOLE[3:] / 3])]
    settled = settled_by({"tp": "replicated"}, of_pieces(*half_reduced))
    assert settled.way is not None
    assert (str(settled.way.a), settled.certainty) == ("replicated", Certainty.TOLD)
