"""Patterns of directory trees, matched level by level while a tree is walked.

    rank_{rank}!/{net}/{graph}/{step}

Each level is literal text with fields in braces; `!` follows the level that proves that this is a dump and
not any other tree of directories. A field matches what `ingest.layouts.fields` says, or anything if it is not
listed there. A pattern may give it a regular expression of its own: `{net:[a-z]+}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ingest.layouts.fields import FIELDS

_PLACEHOLDER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sequence of directory names, from the root of a dump down to a directory that holds a step."""

    text: str
    levels: tuple[re.Pattern[str], ...]
    proof: int
    """How many levels must fit before the tree counts as a dump."""

    of_files: bool = False
    """Whether the last level is that of the names of files."""

    @property
    def directories(self) -> int:
        """How many levels are directories."""
        return len(self.levels) - self.of_files

    def match(self, level: int, name: str) -> dict[str, str] | None:
        """Return the fields in a directory name at one level, or None if it does not fit."""
        match = self.levels[level].fullmatch(name)
        return None if match is None else match.groupdict()

    def match_path(self, path: str) -> dict[str, str] | None:
        """Return the fields in a path from the root of a dump, or None if it does not fit to the end."""
        names = path.split("/")
        if len(names) != len(self.levels):
            return None
        fields: dict[str, str] = {}
        for level, name in enumerate(names):
            matched = self.match(level, name)
            if matched is None:
                return None
            fields |= matched
        return fields


def parse(text: str, *, of_files: bool = False) -> Pattern:
    r"""Return the pattern that a text describes.

    >>> parse("rank_{rank}!/{net}").match(0, "rank_3")
    {'rank': '3'}
    """
    levels = text.split("/")
    proof = next((number for number, level in enumerate(levels, 1) if level.endswith("!")), len(levels))
    return Pattern(
        text,
        tuple(re.compile(_expression(level.removesuffix("!")), re.DOTALL | re.ASCII) for level in levels),
        proof,
        of_files,
    )


def _expression(level: str) -> str:
    parts, at = [], 0
    for placeholder in _PLACEHOLDER.finditer(level):
        name, own = placeholder.groups()
        expression = own or (FIELDS[name].expression if name in FIELDS else ".+")
        parts += [re.escape(level[at : placeholder.start()]), f"(?P<{name}>{expression})"]
        at = placeholder.end()
    return "".join([*parts, re.escape(level[at:])])
