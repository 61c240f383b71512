"""Words for messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 tensor`, `2 tensors`."""
    return f"{count} {noun}{'s' * (count != 1)}"
