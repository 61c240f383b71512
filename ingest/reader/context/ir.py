"""MindSpore's `.ir` files: the name, the call stack and the types of every operator of a graph.

    %1(equiv_5_output) = ReLU(%0) {instance name: relu} primitive_attrs: {IsFeatureMapOutput: Bool(1)}
        : (<Tensor[Float32], (2, 4, 6, 6)>) -> (<Tensor[Float32], (2, 4, 6, 6)>)
        # Fullname with scope: (Default/network-WithLossCell/_backbone-Net/relu-ReLU/ReLU-op0)
        # In file /srv/gen.py:22, 31~52/        return self.fc(self.flat(self.relu(self.conv(x))))/

The name is also spelt `: full_name_with_scope: (...)` (2.0 to 2.3) and `: (Default/...)` (1.x). A line of a
stack is `# In file {path}:{line}[~{end}][, {column}~{column}]/{code}/`, from outermost to innermost, or (1.x)
`# In file {path}({line})/{code}/`, from innermost to outermost. Gradients and fused operators have no stack
of their own, but those of the operators they come from, below `# Corresponding forward node candidate:` and
`# Corresponding code candidate:` (MindSpore, `trace.cc`: GetSourceLineList).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ingest.reader.context.frames import Frame
from ingest.reader.context.types import Signature, parse_signature

#: What of a line is looked at. Lines with large constants are longer; they say nothing that is wanted here.
_MAX_LINE_NBYTES = 64 * 1024
#: Problems that are kept; one damaged file could give one for each line.
_MAX_PROBLEMS = 20

_NAMES = (
    re.compile(r"#\s*Fullname with scope:\s*\((.*)\)"),
    re.compile(r":\s*full_name_with_scope:\s*\((.*)\)"),
    re.compile(r":\s*\(([^<>]*-op\d{1,18})\)"),
)
# The first form with a Python file: a directory may be called `copy (2)` or `a:1`.
_STACK_LINES = tuple(
    re.compile(
        r"#\s*(?P<section>-\s*)?(?:inlined:)?In file (?P<file>.*?" + suffix + r")"
        r"(?::(?P<line>\d{1,9})(?:~\d{1,9})?(?:, \d{1,9}~\d{1,9})?|\((?P<old_line>\d{1,9})\))/(?P<code>.*)"
    )
    for suffix in (r"\.py", "")
)
_TIP = "/<~~"
_SECTIONS = {
    "# Corresponding code candidate:": "fused op",
    "# Corresponding forward node candidate:": "forward op",
}


@dataclass(frozen=True, slots=True)
class IrOp:
    """One operator of a graph."""

    name: str
    """Its full name, with its scope."""
    stack: tuple[Frame, ...]
    """From outermost to innermost; empty where the file gives none."""
    of: str
    """Whose stack it is: of the `op` itself, of one `fused op` in it, or of its `forward op`."""
    signature: Signature | None
    """Types of its inputs and outputs; None where they are not understood."""


@dataclass(frozen=True, slots=True)
class IrGraph:
    """What one `.ir` file says."""

    ops: dict[str, IrOp] = field(default_factory=dict)
    """By full name, in the order of the file."""
    problems: list[str] = field(default_factory=list)


def parse_ir(pieces: Iterable[bytes | bytearray]) -> IrGraph:
    """Parse an `.ir` file. Takes time in proportion to its size, and fails on nothing.

    Args:
        pieces: its content, cut anywhere.
    """
    reader = _Reader()
    for number, line in enumerate(_lines(pieces), 1):
        reader.take(line, number)
    reader.finish_op()
    if not reader.graph.ops:
        reader.complain("no operator has a name")
    return reader.graph


def _lines(pieces: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Yield lines without their ends and cut to the limit."""
    rest, cut = b"", False
    for piece in pieces:
        parts = (rest + piece).split(b"\n")
        rest = parts.pop()
        for part in parts:
            if not cut:
                yield part[:_MAX_LINE_NBYTES]
            cut = False
        if len(rest) > _MAX_LINE_NBYTES:
            if not cut:
                yield rest[:_MAX_LINE_NBYTES]
            # The rest of this line is passed over, in whatever pieces it comes.
            rest, cut = b"", True
    if rest and not cut:
        yield rest[:_MAX_LINE_NBYTES]


class _Reader:
    """The state between two lines."""

    def __init__(self) -> None:
        self.graph = IrGraph()
        self._name = ""
        self._signature: Signature | None = None
        self._sections: list[tuple[str, list[Frame]]] = []
        self._reversed = False
        # Most lines, and most stacks, come many times.
        self._frames: dict[str, tuple[Frame, bool, bool] | None] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def take(self, line: bytes, number: int) -> None:
        line = line.strip()
        if line.startswith(b"#"):
            self._take_comment(line.decode("utf-8", "replace"), number)
        elif line.startswith(b":"):
            self._take_colon(line.decode("utf-8", "replace"))
        elif line:
            self.finish_op()  # the next node, or the end of the graph

    def _take_comment(self, text: str, number: int) -> None:
        if "In file " in text[:40]:
            if self._name:
                self._take_frame(text, number)
        elif text in _SECTIONS:
            self._sections.append((_SECTIONS[text], []))
        elif found := _NAMES[0].match(text):
            self._name = found[1]

    def _take_colon(self, text: str) -> None:
        if found := _NAMES[1].match(text) or _NAMES[2].fullmatch(text):
            self._name = found[1]
        elif self._signature is None:
            self._signature = parse_signature(text)

    def _take_frame(self, text: str, number: int) -> None:
        if text not in self._frames:
            self._frames[text] = _parse_frame(text)
        parsed = self._frames[text]
        if parsed is None:
            self.complain(f"line {number} is no line of a stack: {text[:100]!r}")
            return
        frame, new_section, innermost_first = parsed
        if not self._sections:
            self._sections.append(("op", []))
        elif new_section and self._sections[-1][1]:
            self._sections.append((self._sections[-1][0], []))
        self._sections[-1][1].append(frame)
        self._reversed = innermost_first

    def finish_op(self) -> None:
        name, self._name = self._name, ""
        sections, self._sections = self._sections, []
        signature, self._signature = self._signature, None
        if not name:
            return
        if name in self.graph.ops:
            self.complain(f"{name!r} is the name of two operators; the first is taken")
            return
        of, stack = _choose(sections)
        if self._reversed:
            stack = stack[::-1]
        self.graph.ops[name] = IrOp(name, self._stacks.setdefault(stack, stack), of, signature)

    def complain(self, problem: str) -> None:
        if len(self.graph.problems) < _MAX_PROBLEMS:
            self.graph.problems.append(problem)


def _choose(sections: list[tuple[str, list[Frame]]]) -> tuple[str, tuple[Frame, ...]]:
    """Return the first stack that shows code of the user; else the first one."""
    filled = [(of, tuple(frames)) for of, frames in sections if frames]
    for of, frames in filled:
        if any(not frame.is_framework for frame in frames):
            return of, frames
    return filled[0] if filled else ("op", ())


def _parse_frame(text: str) -> tuple[Frame, bool, bool] | None:
    """Return the line, whether it begins a section, and whether this spelling puts the innermost first."""
    for pattern in _STACK_LINES:
        if found := pattern.match(text):
            code = found["code"]
            tip = code.find(_TIP)
            code = code[:tip] if tip >= 0 else code.removesuffix("/")
            line = found["line"] or found["old_line"]
            return (
                Frame(found["file"], int(line), code.strip()),
                found["section"] is not None,
                found["old_line"] is not None,
            )
    return None
