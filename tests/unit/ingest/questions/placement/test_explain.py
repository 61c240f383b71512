"""What a difference looks like."""

from dataclasses import replace

import numpy as np
import pytest

from ingest.questions.placement.decide import decide
from ingest.questions.placement.explain import explain_difference
from tests.in_memory import Values, search_in

WHOLE = np.random.default_rng(12).normal(size=(6, 6)).astype(np.float32)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([WHOLE * 2, WHOLE * 2], "it is 2 times B, the number of ranks"),
        ([WHOLE / 2, WHOLE / 2], "it is 0.5 times B, one part in as many as there are ranks"),
        ([-WHOLE, -WHOLE], "it is -1 times B: its sign is turned round"),
        ([WHOLE * 3, WHOLE * 3], "it is 3 times B"),
        ([WHOLE, WHOLE], ""),
        ([WHOLE[3:], WHOLE[:3]], "piece 0 holds positions 3 to 5 of axis 0 instead of 0 to 2"),
        ([WHOLE[:3], WHOLE[:3]], "several ranks hold the same part"),
        ([WHOLE + 1, WHOLE + 1], ""),
    ],
)
def test_factors_and_parts(parts: list[Values], text: str) -> None:
    told = explain_difference(decide(search_in(parts, [WHOLE]), ("float32", "float32")))
    assert text in told
    assert bool(text) == bool(told)


@pytest.mark.parametrize(("other", "is_told"), [(WHOLE * (np.arange(6) < 3), True), (WHOLE, False)])
def test_replicas_that_differ(other: Values, *, is_told: bool) -> None:
    """As when a dump tells that they are replicas."""
    decision = decide(search_in([WHOLE, other], [WHOLE]), ("float32", "float32"))
    told = next(way for way in decision.search.ways if way.a.kind == "replicated")
    text = explain_difference(replace(decision, way=told))
    assert (text == "its ranks do not hold the same") == is_told
