"""Ranges of numbers as users write them."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def parse_range(text: str) -> tuple[int, int] | None:
    """Return the first and the last number of `3` or `0-7`; None if the text is not such a range."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return (first, last) if first <= last else None
