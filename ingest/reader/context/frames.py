"""The lines of a call stack, and which of them users want to see."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The frameworks and their tools, at any place of installation, and the standard library of Python.
_FRAMEWORK = re.compile(
    r"(?:^|/)(?:"
    r"(?:site-packages|dist-packages|mindspore|package|python)/mindspore/"
    r"|(?:site-packages|dist-packages)/(?:torch|torch_npu|torchair|msprobe|mindtorch)/"
    r"|msprobe/(?:core|mindspore|pytorch)/"
    r"|lib(?:64)?/python3\.\d{1,3}/(?!site-packages/|dist-packages/)"
    r")"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack."""

    file: str
    """A path on the machine that trained, as the dump has it."""
    line: int
    code: str
    """The text of the line, stripped."""
    function: str = ""
    """The name of the function; "" if the dump does not have it."""

    @property
    def is_framework(self) -> bool:
        """Whether the line belongs to the framework or to Python, and not to the user's own code."""
        path = self.file.replace("\\", "/")
        return path.startswith("<") or _FRAMEWORK.search(path) is not None


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The line of a program that made an operator."""

    file: str
    """A path on the machine that trained, as the dump has it."""
    line: int
    code: str
    stack: tuple[Frame, ...]
    """From outermost to innermost."""
    matched: str
    """How the operator was matched with one in `source`: `exact`, or `by scope and type`."""
    of: str
    """Whose line it is: of the `op` itself, of one `fused op` in it, or of the `forward op` of a gradient."""
    op: str
    """The full name of the operator."""
    source: str
    """The file of the dump that has the line."""


def best_frame(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost line of the user's own code; if there is none, the innermost line of all.

    Args:
        stack: from outermost to innermost.
    """
    own = (frame for frame in reversed(stack) if not frame.is_framework)
    return next(own, stack[-1] if stack else None)


def told_frame(told: Mapping[str, Any]) -> Frame | None:
    """Return the line of the program that a log tells of a tensor, as `location`; None if it tells none."""
    match told.get("location"):
        case {"file": str(file), "line": int(line), **rest}:
            return Frame(file, line, str(rest.get("code", "")), str(rest.get("function", "")))
        case _:
            return None
