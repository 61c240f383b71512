"""JSON files beside tensors: msProbe's `stack.json` and `construct.json`, MindSpore's kernel arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ingest.reader.context.frames import Frame

_LINE = re.compile(
    r"\s*File (?P<file>.*?), line (?P<line>\d{1,9}), in (?P<function>[^,\n]*)(?P<code>.*)", re.DOTALL
)
#: The calls whose stacks are not kept, with the forward call that has one.
_FORWARD = (
    (re.compile(r"(.*)\.backward"), r"\1.forward"),
    (re.compile(r"(.*)\.backward\.(\d+)"), r"\1.forward.\2"),
    (re.compile(r"(.*)\.parameters_grad"), r"\1.forward.0"),
    (re.compile(r"(.*)\.parameters_grad\.(\d+)"), r"\1.forward.\2"),
)
_MAX_PROBLEMS = 20
#: Parts of a name, between dots.
_MAX_PARTS = 100


@dataclass(frozen=True, slots=True)
class Stacks:
    """What a `stack.json` says."""

    stacks: dict[str, tuple[Frame, ...]] = field(default_factory=dict)
    """By the key of the call, from outermost to innermost."""
    problems: list[str] = field(default_factory=list)


def parse_stacks(data: bytes) -> Stacks:
    """Parse msProbe's `stack.json` in either form: `{"0": [[keys], [lines]]}` or (older) `{key: [lines]}`.

    The file has the innermost line first; here it is the last.
    """
    found = Stacks()
    content = _parse_object(data, found.problems)
    for name, value in content.items():
        if not isinstance(value, list):
            _complain(found.problems, f"{name!r} has no list of lines")
        elif len(value) == 2 and all(isinstance(part, list) for part in value):
            frames = _frames(value[1], found.problems)
            found.stacks.update((key, frames) for key in value[0] if isinstance(key, str))
        else:
            found.stacks[name] = _frames(value, found.problems)
    return found


def _frames(lines: Iterable[Any], problems: list[str]) -> tuple[Frame, ...]:
    frames = []
    for line in lines:
        parsed = _LINE.match(line) if isinstance(line, str) else None
        if parsed is None:
            _complain(problems, f"is no line of a stack: {str(line)[:100]!r}")
            continue
        code = parsed["code"].lstrip(",").strip()
        frames.append(Frame(parsed["file"], int(parsed["line"]), code, parsed["function"].strip()))
    return tuple(reversed(frames))


def parse_construct(data: bytes) -> tuple[dict[str, str | None], list[str]]:
    """Parse msProbe's `construct.json`: the key of each call, with that of the module it was made in.

    Returns:
        The parents by key, None for what has none (which older versions write as ""); and the problems.
    """
    problems: list[str] = []
    parents: dict[str, str | None] = {}
    for key, parent in _parse_object(data, problems).items():
        if parent is None or isinstance(parent, str):
            parents[key] = parent or None
        else:
            _complain(problems, f"the parent of {key!r} is no name")
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
    """Return the key of the call that a tensor is of: the longest known beginning of a text, up to a dot.

    >>> find_key(["Functional.relu.0.forward.input.0"], {"Functional.relu.0.forward"})
    'Functional.relu.0.forward'
    """
    return next((one for text in texts for one in _beginnings(text) if one in known), None)


def find_stack(texts: Iterable[str], stacks: Container[str]) -> tuple[str, str] | None:
    """Return the key of the call whose stack belongs to a tensor, and whose it is: `op` or `forward op`.

    msProbe keeps no stack of backward calls, which the framework makes: they get that of their forward call.
    """
    texts = list(texts)
    key = find_key(texts, stacks)
    if key is not None:
        return key, "op"
    for text in texts:
        for one in _beginnings(text):
            for pattern, forward in _FORWARD:
                if (found := pattern.fullmatch(one)) and (name := found.expand(forward)) in stacks:
                    return name, "forward op"
    return None


def _beginnings(text: str) -> Iterator[str]:
    parts = text.split(".")[:_MAX_PARTS]
    for end in range(len(parts), 0, -1):
        yield ".".join(parts[:end])


def _parse_object(data: bytes, problems: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        _complain(problems, f"is no JSON: {exc}")
        return {}
    if not isinstance(content, dict):
        _complain(problems, "is no JSON object")
        return {}
    return content


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return "?"


def _complain(problems: list[str], problem: str) -> None:
    if len(problems) < _MAX_PROBLEMS:
        problems.append(problem)
