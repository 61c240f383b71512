"""Numbers in few words."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers shortly, in order: `0-3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"
