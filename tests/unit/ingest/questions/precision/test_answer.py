"""The trend of the largest magnitude, and answers as plain values."""

import math

import pytest

from ingest.questions.precision import trend_of


def test_a_line_is_followed_to_the_limit() -> None:
    assert trend_of([0, 1, 2], [0.0, 1.0, 2.0], 4.0) == (1.0, 5)
    assert trend_of([0, 10, 20], [0.0, 1.0, 2.0], 4.5) == (0.1, 46)


@pytest.mark.parametrize(
    ("steps", "bits", "limit"),
    [
        ([0, 1], [0.0, 1.0], 2.0),  # too few
        ([0, 1, 2], [2.0, 1.0, 0.0], 9.0),  # shrinks
        ([0, 1, 2], [5.0, 6.0, 7.0], 6.5),  # is there already
        ([0, 1, 2], [0.0, 0.001, 0.002], 100.0),  # too far away
    ],
)
def test_no_crossing_is_guessed(steps: list[int], bits: list[float], limit: float) -> None:
    slope, crossing = trend_of(steps, bits, limit)
    assert crossing is None
    assert math.isnan(slope) == (len(steps) < 3)
