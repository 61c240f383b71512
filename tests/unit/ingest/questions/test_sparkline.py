"""Numbers are drawn in any width, and bad ones are always seen."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.questions.trend import BAD, BARS, GAP, UNKNOWN, sparkline


@settings(max_examples=200)
@given(
    places=st.lists(st.tuples(st.floats(), st.booleans(), st.booleans()), max_size=200),
    width=st.integers(1, 80),
)
def test_any_numbers_can_be_drawn(places: list[tuple[float, bool, bool]], width: int) -> None:
    values, present, bad = ([*column] for column in zip(*places, strict=True)) if places else ([], [], [])
    drawn = sparkline(values, present, bad, width)
    assert len(drawn) == min(len(places), width)
    assert set(drawn) <= {*BARS, GAP, BAD, UNKNOWN}
    # What is bad is seen in any width.
    assert (BAD in drawn) == any(there and (wrong or math.isinf(value)) for value, there, wrong in places)
