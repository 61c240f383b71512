"""Which ranks, steps and names a question is about."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import TypeAlias

from workers.errors import UsageError

#: One rank or step, several of them, or None for all.
Choice: TypeAlias = int | Iterable[int] | None


def as_set(choice: Choice) -> set[int] | None:
    """Return the chosen ranks or steps; None for all.

    Raises:
        UsageError: the choice is a text.
    """
    if choice is None:
        return None
    if isinstance(choice, str):  # type: ignore[unreachable]  # what people try first
        raise UsageError(
            f"{choice!r:.80} is not a rank or a step, which are whole numbers",
            hint=f"A name: store.tensors(name={choice!r:.80}).",
        )
    return {int(number) for number in choice} if isinstance(choice, Iterable) else {int(choice)}


def matches(pattern: str | re.Pattern[str], name: str) -> bool:
    """Return whether a name fits a glob, or contains what a regular expression describes."""
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern.search(name) is not None
