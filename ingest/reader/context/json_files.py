"""JSON files next to tensors: `stack.json` and `construct.json` of msProbe, kernel arguments of MindSpore."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ingest.reader.context.frames import Frame
from ingest.reader.indexed_tensor import IndexedTensor

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
_MAX_PROBLEMS = 20
#: Parts of a name, separated by dots.
_MAX_PARTS = 100


@dataclass(frozen=True, slots=True)
class Stacks:
    """The content of a `stack.json`."""

    stacks: dict[str, tuple[Frame, ...]] = field(default_factory=dict)
    """By the key of the call; each from outermost to innermost."""
    problems: list[str] = field(default_factory=list)


def parse_stacks(data: bytes) -> Stacks:
    """Parse msProbe's `stack.json` in either form: `{"0": [[keys], [lines]]}` or (older) `{key: [lines]}`.

    The file has the innermost line first; a parsed stack has it last.
    """
    parsed = Stacks()
    content = _parse_object(data, parsed.problems)
    for name, value in content.items():
        if not isinstance(value, list):
            _add_problem(parsed.problems, f"{name!r} does not have a list of lines")
        elif len(value) == 2 and all(isinstance(part, list) for part in value):
            frames = _frames(value[1], parsed.problems)
            parsed.stacks.update((key, frames) for key in value[0] if isinstance(key, str))
        else:
            parsed.stacks[name] = _frames(value, parsed.problems)
    return parsed


def _frames(lines: Iterable[Any], problems: list[str]) -> tuple[Frame, ...]:
    frames = []
    for line in lines:
        parsed = _LINE.match(line) if isinstance(line, str) else None
        if parsed is None:
            _add_problem(problems, f"is not a line of a stack: {str(line)[:100]!r}")
            continue
        code = parsed["code"].lstrip(",").strip()
        frames.append(Frame(parsed["file"], int(parsed["line"]), code, parsed["function"].strip()))
    return tuple(reversed(frames))


def parse_construct(data: bytes) -> tuple[dict[str, str | None], list[str]]:
    """Parse msProbe's `construct.json`: the key of each call, with that of the module that made the call.

    Returns:
        The parents by key, None for an outermost call (older versions write ""); and the problems.
    """
    problems: list[str] = []
    parents: dict[str, str | None] = {}
    for key, parent in _parse_object(data, problems).items():
        if parent is None or isinstance(parent, str):
            parents[key] = parent or None
        else:
            _add_problem(problems, f"the parent of {key!r} is not a name")
    return parents, problems


def parse_kernel_args(data: bytes) -> tuple[dict[str, str], list[str]]:
    """Parse the arguments of one kernel (`save_kernel_args`): `{"transpose_a": "False"}`.

    Returns:
        The arguments, each as text; and the problems.
    """
    problems: list[str] = []
    content = _parse_object(data, problems)
    return {
        key: value if isinstance(value, str) else _text(value) for key, value in content.items()
    }, problems


def find_key(texts: Iterable[str], known: Container[str]) -> str | None:
    """Return the key of the call of a tensor: the longest known beginning of a text, up to a dot.

    >>> find_key(["Functional.relu.0.forward.input.0"], {"Functional.relu.0.forward"})
    'Functional.relu.0.forward'
    """
    return next((key for text in texts for key in _beginnings(text) if key in known), None)


def find_stack(texts: Iterable[str], stacks: Container[str]) -> tuple[str, str] | None:
    """Return the key of the call whose stack belongs to a tensor, and whose it is: `op` or `forward op`.

    msProbe does not keep stacks of backward calls, which the framework makes. The stack of the forward call
    stands for them.
    """
    texts = list(texts)
    key = find_key(texts, stacks)
    if key is not None:
        return key, "op"
    for text in texts:
        for beginning in _beginnings(text):
            for forward in _forward_keys(beginning):
                if forward in stacks:
                    return forward, "forward op"
    return None


def _forward_keys(key: str) -> Iterator[str]:
    """Yield the keys that the forward call of a backward call may have."""
    for pattern, forward in _FORWARD:
        if match := pattern.fullmatch(key):
            yield match.expand(forward)


def _beginnings(text: str) -> Iterator[str]:
    """Yield the beginnings of a text that end before a dot, the longest first."""
    parts = text.split(".")[:_MAX_PARTS]
    for end in range(len(parts), 0, -1):
        yield ".".join(parts[:end])


def _parse_object(data: bytes, problems: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        _add_problem(problems, f"is not JSON: {exc}")
        return {}
    if not isinstance(content, dict):
        _add_problem(problems, "is not a JSON object")
        return {}
    return content


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return "?"


def _add_problem(problems: list[str], problem: str) -> None:
    if len(problems) < _MAX_PROBLEMS:
        problems.append(problem)


def call_texts(tensor: IndexedTensor) -> list[str]:
    """Return texts that may begin with the key of an msProbe call: the names of the file and the operator."""
    stem = tensor.source.rpartition("/")[2].removesuffix(".npy").removesuffix(".pt")
    return [stem, f"{tensor.op_type}.{tensor.op_name}", tensor.op_name]
