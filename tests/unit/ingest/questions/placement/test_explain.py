"""What a difference looks like."""

import numpy as np
import pytest

from ingest.questions.placement.decide import decide, explain_difference
from tests.in_memory import Values, search_in

WHOLE = np.random.default_rng(12).normal(size=(6, 6)).astype(np.float32)


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
def test_factors_and_parts(parts: list[Values], text: str) -> None:
    told = explain_difference(decide(search_in(parts, [WHOLE]), ("float32", "float32")))
    assert text in told
    assert bool(text) == bool(told)
