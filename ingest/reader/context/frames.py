"""One line of a call stack, and which line of a stack a user would want to see."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: The frameworks and their tools, wherever they are installed or built; and the standard library.
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
    """As the dump spells it: a path on the machine that trained."""
    line: int
    code: str
    """The text of the line, without the blanks around it."""
    function: str = ""
    """Where the dump names it."""

    @property
    def is_framework(self) -> bool:
        """Whether the line belongs to the framework (or Python itself) and not to its user."""
        path = self.file.replace("\\", "/")
        return path.startswith("<") or _FRAMEWORK.search(path) is not None


def best_frame(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost line of the user's own code; where there is none, the innermost line at all.

    Args:
        stack: from outermost to innermost.
    """
    own = (frame for frame in reversed(stack) if not frame.is_framework)
    return next(own, stack[-1] if stack else None)
