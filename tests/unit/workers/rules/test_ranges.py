"""Ranges of numbers as users write them."""

import pytest

from workers.rules.ranges import parse_range


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("3", (3, 3)), ("0-7", (0, 7)), (" 12-12 ", (12, 12)), ("1-9999999", (1, 9999999))],
)
def test_a_range_is_one_number_or_two(text: str, numbers: tuple[int, int]) -> None:
    assert parse_range(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "1-2-3", "1 - 2", "12345678", "1.0", "1,2", "True"])
def test_anything_else_is_not_a_range(text: str) -> None:
    assert parse_range(text) is None
