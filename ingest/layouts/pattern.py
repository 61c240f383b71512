"""Patterns of directory trees, matched level by level while a tree is walked.

    rank_{rank}!/{net}/{graph}/{step}

Each level is literal text with fields in braces; `!` follows the level that proves that this is a dump and
not any other tree of directories. A field matches what `FIELDS` says, or anything if it is not listed there.
A pattern may give it a regular expression of its own: `{net:[a-z]+}`. A new field that tells the step of a
place is one entry of `FIELDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: What GE writes if it has no step yet.
_NO_STEP = 2147483647


def _step(number: int) -> int | None:
    return None if number == _NO_STEP else number


def _step_before(number: int) -> int:
    # TorchAir once named directories after the next step.
    return max(number - 1, 0)


@dataclass(frozen=True, slots=True)
class Field:
    """What is known of a field by its name."""

    expression: str
    """The regular expression that it matches, unless a pattern gives it another."""
    step: Callable[[int], int | None] | None = None
    """Returns the step, if the field is a number that tells the step."""
    is_of_run: bool = False
    """Whether it differs if a job is started again."""


#: Fields that number processes along an axis of parallelism, the slowest first.
MESH_FIELDS = ("pipeline_parallel", "expert_parallel", "data_parallel", "tensor_parallel")
#: Fields that mean the same in every layout. Ranks and devices are spelled as programs spell them: with
#: `rank_01` next to `rank_1`, one of the two would be lost. A `time` may be an invalid one: some dumps have
#: times with 66 seconds. If a path has several steps, the first of these fields counts: the user's step comes
#: before the iteration that the graph engine counts.
FIELDS: Mapping[str, Field] = {
    "rank": Field(r"0|[1-9][0-9]{0,8}"),
    "device": Field(r"0|[1-9][0-9]{0,8}"),
    "pid": Field(r"[1-9][0-9]{0,8}", is_of_run=True),
    "time": Field(r"[0-9]{14}", is_of_run=True),
    "previous_step": Field(r"[0-9]{1,18}", _step_before),
    "step": Field(r"[0-9]{1,18}", _step),
    "iteration": Field(r"[0-9]{1,18}", _step),
    **{name: Field(r"[0-9]{1,9}") for name in MESH_FIELDS},
}
#: The fields that tell the step. The first of them that a path has counts.
STEP_FIELDS: Mapping[str, Callable[[int], int | None]] = {
    name: field.step for name, field in FIELDS.items() if field.step is not None
}
_NOT_IN_SERIES = frozenset(
    name for name, field in FIELDS.items() if field.is_of_run or field.step is not None
)


def step_of(fields: Mapping[str, str]) -> int | None:
    """Return the step of a place, None if it has none."""
    for name, to_step in STEP_FIELDS.items():
        if name in fields:
            return to_step(int(fields[name]))
    return None


def series_of(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the fields that places of successive steps have in common."""
    return tuple(sorted(item for item in fields.items() if item[0] not in _NOT_IN_SERIES))


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
