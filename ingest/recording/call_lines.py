"""The lines of the program that call modules and functions: cheap to note, and formatted later."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType

import msgspec

from ingest.recording.torch_module import Torch, TorchModule

#: Frames of one stack, from the innermost one on.
_MAX_FRAMES = 40
_OWN_DIRECTORY = str(Path(__file__).parent)

_Place = tuple[CodeType, int]


class CallLines:
    """Who called what, by the names of operators: the first call of each.

    Args:
        torch: the module. Its own frames are left out.
    """

    def __init__(self, torch: Torch) -> None:
        self._stacks: dict[str, tuple[_Place, ...]] = {}
        self._left_out = (_OWN_DIRECTORY, str(Path(torch.__file__).parent))
        self._is_kept: dict[CodeType, bool] = {}

    def note(self, name: str, module: TorchModule | None = None) -> None:
        """Note who calls a module or a function now; a second time does nothing.

        The stack ends with the `forward` of the module, so that it names the code that runs in the call.
        """
        if name in self._stacks:
            return
        places = list(self._walk(sys._getframe(1)))  # noqa: SLF001  (`inspect.stack` takes 10 ms)
        forward = getattr(getattr(type(module), "forward", None), "__code__", None)
        if isinstance(forward, CodeType) and self._keeps(forward):
            places.insert(0, (forward, forward.co_firstlineno))
        self._stacks[name] = tuple(places)

    def _walk(self, frame: FrameType | None) -> list[_Place]:
        places: list[_Place] = []
        while frame is not None and len(places) < _MAX_FRAMES:
            if self._keeps(frame.f_code):
                places.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return places

    def _keeps(self, code: CodeType) -> bool:
        kept = self._is_kept.get(code)
        if kept is None:
            kept = self._is_kept[code] = not code.co_filename.startswith(self._left_out)
        return kept

    def to_json(self) -> bytes:
        """Return all stacks in the form of msProbe's `stack.json`, innermost line first."""
        return msgspec.json.encode(
            {name: [_line(*place) for place in places] for name, places in tuple(self._stacks.items())}
        )


def _line(code: CodeType, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    return f"File {code.co_filename}, line {line}, in {code.co_name}, \n {text}"
