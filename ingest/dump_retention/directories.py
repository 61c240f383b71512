"""Which directories of a dump belong to one step, so that they go with its last file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.layouts.base import LayoutPlace
from ingest.layouts.pattern import Pattern

_STEP_FIELDS = frozenset(["step", "iteration", "previous_step"])


def step_directories(places: Iterable[LayoutPlace]) -> Iterator[str]:
    """Yield the directories that are a step's by name, if its places lie below them: `step8/rank0`."""
    for located in places:
        names = located.place.path.split("/")
        pattern = next((pattern for pattern in located.layout.patterns if _fits(pattern, names)), None)
        if pattern is not None:
            first = next(
                (level for level, name in enumerate(names, 1) if _names_step(pattern, level - 1, name)),
                len(names),
            )
            yield from ("/".join(names[:end]) for end in range(first, len(names)))


def _fits(pattern: Pattern, names: list[str]) -> bool:
    """Return whether a pattern matches a path from its first level to its last."""
    return len(names) == len(pattern.levels) and all(
        pattern.match(level, name) is not None for level, name in enumerate(names)
    )


def _names_step(pattern: Pattern, level: int, name: str) -> bool:
    """Return whether the step is part of the name of a directory."""
    fields = pattern.match(level, name)
    return fields is not None and not _STEP_FIELDS.isdisjoint(fields)
