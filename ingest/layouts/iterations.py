"""The steps that a dump configuration of MindSpore or CANN asks for."""

from __future__ import annotations


def parse_iterations(text: str) -> frozenset[int] | None:
    """Return the steps that the `iteration` of a dump configuration lists, as in `0|5-8|100-120`.

    None for `all`, for nonsense, and for more than a million steps.
    """
    steps: set[int] = set()
    for group in str(text).split("|"):
        first, dash, last = group.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return None
        low, high = int(first), int(last or first)
        if not 0 <= high - low < 1_000_000:
            return None
        steps.update(range(low, high + 1))
        if len(steps) > 1_000_000:
            return None
    return frozenset(steps)
