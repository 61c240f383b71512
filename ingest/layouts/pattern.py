"""Patterns of directory trees, matched level by level while a tree is walked.

    rank_{rank}!/{net}/{graph}/{step}

Each level is literal text with fields in braces; `!` stands after the level that proves that this is a dump
and not any tree of directories. A field matches as `FIELDS` says, or anything where that has no entry; a
pattern may give it a regular expression of its own: `{net:[a-z]+}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: What the fields match. `rank` and `device` as programs spell them: with `rank_01` beside `rank_1`, one of
#: the two would be lost. Of a `time`, no valid date is demanded: there are some of 66 seconds.
FIELDS: Mapping[str, str] = {
    "rank": r"0|[1-9][0-9]{0,8}",
    "device": r"0|[1-9][0-9]{0,8}",
    "pid": r"[1-9][0-9]{0,8}",
    "step": r"[0-9]{1,18}",
    "iteration": r"[0-9]{1,18}",
    "model_id": r"[0-9]{1,18}",
    "time": r"[0-9]{14}",
}
_PLACEHOLDER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sequence of directory names, from the root of a dump down to a directory that holds a step."""

    text: str
    levels: tuple[re.Pattern[str], ...]
    proof: int
    """How many levels must fit before the tree counts as a dump."""

    def match(self, level: int, name: str) -> dict[str, str] | None:
        """Return the fields that a directory name gives at one level, or None if it does not fit."""
        found = self.levels[level].fullmatch(name)
        return None if found is None else found.groupdict()


def parse(text: str) -> Pattern:
    r"""Return the pattern that a text describes.

    >>> parse("rank_{rank}!/{net}").match(0, "rank_3")
    {'rank': '3'}
    """
    levels = text.split("/")
    proof = next((n for n, level in enumerate(levels, 1) if level.endswith("!")), len(levels))
    return Pattern(
        text,
        tuple(re.compile(_expression(level.removesuffix("!")), re.DOTALL | re.ASCII) for level in levels),
        proof,
    )


def _expression(level: str) -> str:
    parts, at = [], 0
    for found in _PLACEHOLDER.finditer(level):
        name, own = found.groups()
        parts += [re.escape(level[at : found.start()]), f"(?P<{name}>{own or FIELDS.get(name, '.+')})"]
        at = found.end()
    return "".join([*parts, re.escape(level[at:])])
