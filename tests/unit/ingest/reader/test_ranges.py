"""Ranges of numbers are written shortly, and without losing one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.choice import format_ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "none"), ([7], "7"), ([3, 1, 2], "1-3"), ({0, 1, 2, 7, 9, 10}, "0-2, 7, 9-10"), ([-1, 0], "-1-0")],
)
def test_neighbours_become_a_range(numbers: list[int], text: str) -> None:
    assert format_ranges(numbers) == text


@given(st.sets(st.integers(0, 50)))
def test_ranges_hold_exactly_the_numbers(numbers: set[int]) -> None:
    text = format_ranges(numbers)
    held: set[int] = set()
    for part in [] if text == "none" else text.split(", "):
        first, _, last = part.partition("-")
        held |= set(range(int(first), int(last or first) + 1))
    assert held == numbers
