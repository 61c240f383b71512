"""Frames of call stacks, and the JSON files in which msProbe and MindSpore tell of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest.reader.context.files import Problems

if TYPE_CHECKING:
    from ingest.reader.tensor import Tensor

#: The frameworks and their tools, at any place of installation, and the standard library of Python.
_FRAMEWORK = re.compile(
    r"(?:^|/)(?:"
    r"(?:site-packages|dist-packages|mindspore|package|python)/mindspore/"
    r"|(?:site-packages|dist-packages)/(?:torch|torch_npu|torchair|msprobe|mindtorch)/"
    r"|msprobe/(?:core|mindspore|pytorch)/"
    r"|lib(?:64)?/python3\.\d{1,3}/(?!site-packages/|dist-packages/)"
    r")"
)
_LINE = re.compile(
    r"\s*File (?P<file>.*?), line (?P<line>\d{1,9}), in (?P<function>[^,\n]*)(?P<code>.*)", re.DOTALL
)
#: Calls without a stack of their own, and the forward call whose stack stands for it.
_FORWARD = (
    (re.compile(r"(.*)\.backward"), r"\1.forward"),
    (re.compile(r"(.*)\.backward\.(\d+)"), r"\1.forward.\2"),
    (re.compile(r"(.*)\.parameters_grad"), r"\1.forward.0"),
    (re.compile(r"(.*)\.parameters_grad\.(\d+)"), r"\1.forward.\2"),
)
#: Parts of a name, separated by dots.
_MAX_PARTS = 100


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


def parse_stacks(data: bytes) -> tuple[dict[str, tuple[Frame, ...]], Problems]:
    """Parse msProbe's `stack.json` in either form: `{"0": [[keys], [lines]]}` or (older) `{key: [lines]}`.

    Returns:
        The stacks by the key of the call, each from outermost to innermost (the file has it the other way
        round); and the problems.
    """
    stacks: dict[str, tuple[Frame, ...]] = {}
    content, problems = _parse_object(data)
    for name, value in content.items():
        if not isinstance(value, list):
            problems.append(f"{name!r} does not have a list of lines")
        elif len(value) == 2 and all(isinstance(part, list) for part in value):
            frames = _frames(value[1], problems)
            stacks.update((key, frames) for key in value[0] if isinstance(key, str))
        else:
            stacks[name] = _frames(value, problems)
    return stacks, problems


def _frames(lines: Iterable[Any], problems: Problems) -> tuple[Frame, ...]:
    frames = []
    for line in lines:
        if isinstance(line, str) and (parsed := _LINE.match(line)):
            code = parsed["code"].lstrip(",").strip()
            frames.append(Frame(parsed["file"], int(parsed["line"]), code, parsed["function"].strip()))
        else:
            problems.append(f"is not a line of a stack: {str(line)[:100]!r}")
    return tuple(reversed(frames))


def parse_construct(data: bytes) -> tuple[dict[str, str | None], Problems]:
    """Parse msProbe's `construct.json`: the key of each call, with that of the module that made the call.

    Returns:
        The parents by key, None for an outermost call (older versions write ""); and the problems.
    """
    content, problems = _parse_object(data)
    for key, parent in content.items():
        if not isinstance(parent, str | None):
            problems.append(f"the parent of {key!r} is not a name")
    return {key: name or None for key, name in content.items() if isinstance(name, str | None)}, problems


def parse_kernel_args(data: bytes) -> tuple[dict[str, str], Problems]:
    """Parse the arguments of one kernel (`save_kernel_args`): `{"transpose_a": "False"}`.

    Returns:
        The arguments, each as text; and the problems.
    """
    content, problems = _parse_object(data)
    return {name: arg if isinstance(arg, str) else json.dumps(arg) for name, arg in content.items()}, problems


def _parse_object(data: bytes) -> tuple[dict[str, Any], Problems]:
    try:
        content = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        return {}, Problems([f"is not JSON: {exc}"])
    return (content, Problems()) if isinstance(content, dict) else ({}, Problems(["is not a JSON object"]))


def call_texts(tensor: Tensor) -> list[str]:
    """Return texts that may begin with the key of an msProbe call: the names of the file and the operator."""
    stem = tensor.source.rpartition("/")[2].removesuffix(".npy").removesuffix(".pt")
    return [stem, f"{tensor.op_type}.{tensor.op_name}", tensor.op_name]


def find_key(texts: Iterable[str], known: Container[str]) -> str | None:
    """Return the key of the call of a tensor: the longest known beginning of a text, up to a dot.

    >>> find_key(["Functional.relu.0.forward.input.0"], {"Functional.relu.0.forward"})
    'Functional.relu.0.forward'
    """
    return next((key for text in texts for key in _beginnings(text) if key in known), None)


def find_stack(texts: Sequence[str], stacks: Container[str]) -> tuple[str, str] | None:
    """Return the key of the call whose stack belongs to a tensor, and whose it is: `op` or `forward op`.

    msProbe does not keep stacks of backward calls, which the framework makes. The stack of the forward call
    stands for them.
    """
    if (key := find_key(texts, stacks)) is not None:
        return key, "op"
    forward = (
        match.expand(template)
        for text in texts
        for beginning in _beginnings(text)
        for pattern, template in _FORWARD
        if (match := pattern.fullmatch(beginning))
    )
    return next(((key, "forward op") for key in forward if key in stacks), None)


def _beginnings(text: str) -> Iterator[str]:
    """Yield the beginnings of a text that end before a dot, the longest first."""
    parts = text.split(".")[:_MAX_PARTS]
    return (".".join(parts[:end]) for end in range(len(parts), 0, -1))
