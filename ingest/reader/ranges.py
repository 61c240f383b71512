"""Whole numbers as text, neighbours as ranges."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers in ascending order, neighbours as a range: `0-3, 7`; `none` for no numbers."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or "none"


def named_ranges(noun: str, numbers: Iterable[int]) -> str:
    """Write numbers after their noun: `step 3`, `steps 1-3, 7`."""
    listed = list(numbers)
    return f"{noun}{'s' * (len(listed) != 1)} {format_ranges(listed)}"
