"""Parse an index such as `3:5,:` into integers and slices."""

from __future__ import annotations

import re
from types import EllipsisType
from typing import TypeAlias

from ingest.reader.text import counted
from workers.errors import UsageError

#: A basic index, as numpy takes it.
Index: TypeAlias = tuple[int | slice | EllipsisType, ...]

_PART = re.compile(r"(-?\d{1,18})|(-?\d{1,18})?:(-?\d{1,18})?(?::(-?\d{1,18})?)?")


def parse_index(text: str, shape: tuple[int, ...]) -> Index:
    """Return the index that a text such as `3:5,:`, `-1` or `...,0` stands for.

    Args:
        text: integers and slices as numpy has them, separated by commas.
        shape: the shape to which the index is applied.

    Raises:
        UsageError: a part is not an integer or slice, there are too many, or an integer is out of range.
    """
    index = _parse_parts(text)
    positions = [part for part in index if part is not Ellipsis]
    if len(positions) > len(shape):
        raise UsageError(
            f"{text!r} has {counted(len(positions), 'part')}, and the shape is {shape}",
            hint=f"Give at most {counted(len(shape), 'part')}.",
        )
    before = index.index(Ellipsis) if Ellipsis in index else len(index)
    for number, part in enumerate(positions):
        axis = number if number < before else len(shape) - len(positions) + number
        if isinstance(part, int):
            _refuse_outside(part, axis, shape)
    return index


def _parse_parts(text: str) -> Index:
    parts = [part.strip() for part in text.strip().strip("[]").split(",")]
    if parts.count("...") > 1:
        raise UsageError(f"{text!r} has more than one '...'", hint="Write one of them.")
    return tuple(_parse_part(part, text) for part in parts if part)


def _refuse_outside(position: int, axis: int, shape: tuple[int, ...]) -> None:
    if not -shape[axis] <= position < shape[axis]:
        raise UsageError(
            f"{position} is out of range for axis {axis} of the shape {shape}",
            hint=f"Positions are 0 to {shape[axis] - 1}." if shape[axis] else "The axis is empty.",
        )


def _parse_part(part: str, text: str) -> int | slice | EllipsisType:
    if part == "...":
        return Ellipsis
    match = _PART.fullmatch(part)
    if match is None or match[4] in ("0", "-0"):
        raise UsageError(
            f"{part!r} in {text!r} is not a position or slice",
            hint="Write positions and slices as numpy has them: '3:5,:', '-1', '...,0'.",
        )
    if match[1] is not None:
        return int(match[1])
    begin, end, step = (None if group is None else int(group) for group in match.group(2, 3, 4))
    return slice(begin, end, step)
