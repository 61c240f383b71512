"""Which steps and ranks are next to the one that is looked at."""

from __future__ import annotations

from collections.abc import Iterable


def around(number: int, numbers: Iterable[int]) -> tuple[int | None, int | None]:
    """Return the greatest of these numbers below a number and the least above it; None if there is none."""
    others = set(numbers)
    below = max((other for other in others if other < number), default=None)
    return below, min((other for other in others if other > number), default=None)
