"""Which way is taken, and how certain that is."""

import numpy as np
import pytest

from ingest.questions.placement.decide import Certainty, decide, describe, fit_limit
from tests.in_memory import Values, search_in

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
