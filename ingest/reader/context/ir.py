"""Parse MindSpore's `.ir` files: the name, the call stack and the types of every operator of a graph.

    %1(equiv_5_output) = ReLU(%0) {instance name: relu} primitive_attrs: {IsFeatureMapOutput: Bool(1)}
        : (<Tensor[Float32], (2, 4, 6, 6)>) -> (<Tensor[Float32], (2, 4, 6, 6)>)
        # Fullname with scope: (Default/network-WithLossCell/_backbone-Net/relu-ReLU/ReLU-op0)
        # In file /srv/gen.py:22, 31~52/        return self.fc(self.flat(self.relu(self.conv(x))))/

The name is also written `: full_name_with_scope: (...)` (2.0 to 2.3) and `: (Default/...)` (1.x). A line of a
stack is `# In file {path}:{line}[~{end}][, {column}~{column}]/{code}/`, from outermost to innermost, or (1.x)
`# In file {path}({line})/{code}/`, from innermost to outermost. Gradients and fused operators do not have a
stack of their own, but those of the operators from which they were made, below
`# Corresponding forward node candidate:` and `# Corresponding code candidate:` (MindSpore, `trace.cc`:
GetSourceLineList).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ingest.reader.context.frames import Frame
from ingest.reader.context.ir_nodes import IrSource, NodeTable
from ingest.reader.context.signature import Signature, parse_signature

#: The part of a line that is parsed. Only lines with large constants are longer, and they are not needed.
_MAX_LINE_NBYTES = 64 * 1024
#: Problems that are kept: a damaged file could have one in each line.
_MAX_PROBLEMS = 20

_NAMES = (
    re.compile(r"#\s*Fullname with scope:\s*\((.*)\)"),
    re.compile(r":\s*full_name_with_scope:\s*\((.*)\)"),
    re.compile(r":\s*\(([^<>]*-op\d{1,18})\)"),
)
# Paths that end in `.py` are tried first, because a directory may be called `copy (2)` or `a:1`.
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
    """From outermost to innermost; empty if the file does not have a stack for it."""
    of: str
    """Whose stack it is: of the `op` itself, of one `fused op` in it, or of its `forward op`."""
    signature: Signature | None
    """The types of its inputs and outputs; None if they are not understood."""
    inputs: tuple[IrSource | None, ...] = ()
    """By slot: what the operator reads; None for a constant, and for what is not understood."""


@dataclass(frozen=True, slots=True)
class IrGraph:
    """The content of one `.ir` file."""

    ops: dict[str, IrOp] = field(default_factory=dict)
    """By full name, in the order of the file."""
    problems: list[str] = field(default_factory=list)


def parse_ir(pieces: Iterable[bytes | bytearray]) -> IrGraph:
    """Parse an `.ir` file. The time is proportional to its size; any content is accepted.

    Args:
        pieces: the content, cut at any bytes.
    """
    parser = IrParser()
    for number, line in enumerate(_lines(pieces), 1):
        parser.parse_line(line, number)
    parser.finish_op()
    if not parser.graph.ops:
        parser.add_problem("no operator has a name")
    return parser.graph


def _lines(pieces: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Yield lines without their ends, cut to the limit."""
    rest, is_cut = b"", False
    for piece in pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if not is_cut:
                yield line[:_MAX_LINE_NBYTES]
            is_cut = False
        if len(rest) > _MAX_LINE_NBYTES:
            if not is_cut:
                yield rest[:_MAX_LINE_NBYTES]
            # Skip the rest of this line, in any number of pieces.
            rest, is_cut = b"", True
    if rest and not is_cut:
        yield rest[:_MAX_LINE_NBYTES]


class IrParser:
    """Parses line by line; the state is that of the operator whose lines are being read."""

    def __init__(self) -> None:
        self.graph = IrGraph()
        self._name = ""
        self._inputs: tuple[IrSource | None, ...] = ()
        self._nodes = NodeTable()
        self._signature: Signature | None = None
        self._sections: list[tuple[str, list[Frame]]] = []
        self._reversed = False
        # Most lines and most stacks occur many times.
        self._frames: dict[str, tuple[Frame, bool, bool] | None] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def parse_line(self, line: bytes, number: int) -> None:
        """Take a line of an `.ir` file."""
        line = line.strip()
        if line.startswith(b"#"):
            self._parse_comment(line.decode("utf-8", "replace"), number)
        elif line.startswith(b":"):
            self._parse_colon(line.decode("utf-8", "replace"))
        elif self._nodes.goes_on(line):
            self._inputs = self._nodes.add_more(line) or self._inputs
        elif line:
            self.finish_op()  # the next node, or the end of the graph
            self._inputs = self._nodes.add_line(line)

    def add_op(
        self,
        name: str,
        inputs: tuple[IrSource | None, ...],
        signature: Signature | None,
        stack: Iterable[str],
    ) -> None:
        """Take an operator of another kind of file, with the lines of its stack, innermost first."""
        self._name, self._inputs, self._signature = name, inputs, signature
        for number, line in enumerate(stack, 1):
            self._parse_comment(line.strip(), number)
        self._reversed = True
        self.finish_op()

    def _parse_comment(self, text: str, number: int) -> None:
        if "In file " in text[:40]:
            if self._name:
                self._parse_frame(text, number)
        elif text in _SECTIONS:
            self._sections.append((_SECTIONS[text], []))
        elif name := _NAMES[0].match(text):
            self._name = name[1]

    def _parse_colon(self, text: str) -> None:
        if name := _NAMES[1].match(text) or _NAMES[2].fullmatch(text):
            self._name = name[1]
        elif self._signature is None:
            self._signature = parse_signature(text)

    def _parse_frame(self, text: str, number: int) -> None:
        if text not in self._frames:
            self._frames[text] = _parse_frame(text)
        parsed = self._frames[text]
        if parsed is None:
            self.add_problem(f"line {number} is not a line of a stack: {text[:100]!r}")
            return
        frame, new_section, innermost_first = parsed
        if not self._sections:
            self._sections.append(("op", []))
        elif new_section and self._sections[-1][1]:
            self._sections.append((self._sections[-1][0], []))
        self._sections[-1][1].append(frame)
        self._reversed = innermost_first

    def finish_op(self) -> None:
        """Add the operator whose lines were taken to the graph, if it has a name."""
        name, self._name = self._name, ""
        sections, self._sections = self._sections, []
        signature, self._signature = self._signature, None
        inputs, self._inputs = self._inputs, ()
        if not name:
            return
        self._nodes.name_last(name)
        if name in self.graph.ops:
            self.add_problem(f"{name!r} is the name of two operators; the first one is used")
            return
        of, stack = _choose(sections)
        if self._reversed:
            stack = stack[::-1]
        self.graph.ops[name] = IrOp(name, self._stacks.setdefault(stack, stack), of, signature, inputs)

    def add_problem(self, problem: str) -> None:
        """Add a problem, unless there are many."""
        if len(self.graph.problems) < _MAX_PROBLEMS:
            self.graph.problems.append(problem)


def _choose(sections: list[tuple[str, list[Frame]]]) -> tuple[str, tuple[Frame, ...]]:
    """Return the first stack with code of the user; if there is none, the first stack."""
    filled = [(of, tuple(frames)) for of, frames in sections if frames]
    for of, frames in filled:
        if any(not frame.is_framework for frame in frames):
            return of, frames
    return filled[0] if filled else ("op", ())


def _parse_frame(text: str) -> tuple[Frame, bool, bool] | None:
    """Return the line, whether it begins a section, and whether stacks in this spelling begin innermost."""
    for pattern in _STACK_LINES:
        if match := pattern.match(text):
            code = match["code"]
            tip = code.find(_TIP)
            code = code[:tip] if tip >= 0 else code.removesuffix("/")
            line = match["line"] or match["old_line"]
            return (
                Frame(match["file"], int(line), code.strip()),
                match["section"] is not None,
                match["old_line"] is not None,
            )
    return None
