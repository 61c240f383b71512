"""Parse MindSpore's `.ir` files: name, call stack, types and sources of every operator of a graph.

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

`%0` is another node of the same subgraph, `%para6_fc1.weight` is a parameter. Some nodes only pass on what
they read: `Load` a parameter, `Depend` its first input, `TupleGetItem` one output of several. The arguments
of a node may go on for many lines if one is a constant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ingest.reader.context.files import Problems
from ingest.reader.context.stacks import Frame

#: The part of a line that is parsed. Only lines with large constants are longer, and they are not needed.
_MAX_LINE_NBYTES = 64 * 1024
#: The part of an argument that is kept: names are shorter, and constants are not needed.
_MAX_ARGUMENT = 4096
_MAX_AXES = 64

_NODE = re.compile(rb"%(\w+)\([^()]*\) = (?:PrimFunc_)?([\w.]+)\(")
_PARAMETER = re.compile(r"%para\d+_(.+)")
_INDEX = re.compile(r"[IU](?:nt)?(?:32|64)\((\d{1,6})\)")
_SPECIAL = re.compile(r'["()\[\]{}<>,]')
#: Nodes whose output is their first input, or a part of it.
PASSING = frozenset(["Load", "Depend", "TupleGetItem"])

_NAME_COMMENT = re.compile(r"#\s*Fullname with scope:\s*\((.*)\)")
_NAME_COLON = re.compile(r":\s*full_name_with_scope:\s*\((.*)\)|:\s*\(([^<>]*-op\d{1,18})\)$")
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

_TYPED = re.compile(r"<([^<>]*)>")
_TENSOR = re.compile(r"Tensor\[(\w+)\], \(([\d, ]*)\)")
_LENGTH = re.compile(r"\s*\d{1,18}\s*")

TensorType: TypeAlias = tuple[str, int]
"""The element type in lower case (`float32`), and the number of elements.

Shapes would be too strict: after a reshape that costs nothing, the next operator may be dumped with the shape
before it (in a real dump, an input of (8, 16) that is (1, 8, 16) in the graph).
"""


class IrSource(NamedTuple):
    """What an operator reads: an output of another operator, or a parameter."""

    name: str
    """The full name of the operator, or the name of the parameter or input of the network."""
    slot: int
    """The slot of the output; -1 for a parameter."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of the inputs and outputs of one operator in a graph; None for those not understood."""

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]

    def allows(self, dumped: Mapping[tuple[str, int], TensorType]) -> bool:
        """Return whether the operator may have dumped tensors of these types, by `io` and slot.

        Only slots that both sides know are compared: parameters, for example, are not dumped as inputs.
        """
        known = {("input", slot): kind for slot, kind in enumerate(self.inputs)}
        known |= {("output", slot): kind for slot, kind in enumerate(self.outputs)}
        return all(known.get(place) in (None, kind) for place, kind in dumped.items())


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
    """None if its types are not understood."""
    inputs: tuple[IrSource | None, ...] = ()
    """By slot: what the operator reads; None for a constant, and for what is not understood."""


@dataclass(frozen=True, slots=True)
class IrGraph:
    """The operators of one file by full name, in the order of the file."""

    ops: dict[str, IrOp] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)


def parse_ir(pieces: Iterable[bytes | bytearray]) -> IrGraph:
    """Parse an `.ir` file. The time is proportional to its size; any content is accepted.

    Args:
        pieces: the content, cut at any bytes.
    """
    parser = IrParser()
    for number, line in enumerate(_lines(pieces), 1):
        parser.take(line.strip(), number)
    return parser.finished()


def _lines(pieces: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Yield lines without their ends, cut to the limit."""
    rest, is_cut = b"", False
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not is_cut:
                yield line[:_MAX_LINE_NBYTES]
            is_cut = False
        if is_cut or len(rest) > _MAX_LINE_NBYTES:
            if not is_cut:
                yield rest[:_MAX_LINE_NBYTES]
            # Skip the rest of this line, in any number of pieces.
            rest, is_cut = b"", True
    if rest and not is_cut:
        yield rest[:_MAX_LINE_NBYTES]


@dataclass(slots=True)
class ArgumentReader:
    """Takes the arguments of a node, line by line, up to the bracket that closes them."""

    arguments: list[str] = field(default_factory=list)
    is_closed: bool = False
    _begun: str = ""
    """The argument that has no end yet."""
    _depth: int = 0
    _quoted: bool = False

    def take(self, text: str) -> None:
        """Take another line, or the rest of one; nothing is cut within brackets or quotes."""
        begin = 0
        for special in _SPECIAL.finditer(text):
            character = special[0]
            self._quoted ^= character == '"'
            if self._quoted:
                continue
            self._depth += (character in "([{<") - (character in ")]}>")
            if self._depth < 0 or (character == "," and not self._depth):
                if argument := (self._begun + text[begin : special.start()]).strip()[:_MAX_ARGUMENT]:
                    self.arguments.append(argument)
                self._begun, begin = "", special.end()
            if self._depth < 0:
                self.is_closed = True
                return
        self._begun = (self._begun + text[begin:])[:_MAX_ARGUMENT]


class IrParser:
    """Takes lines; the state is that of the operator whose lines are being read."""

    def __init__(self) -> None:
        self._graph = IrGraph()
        self._sources: dict[str, IrSource | None] = {}
        """What reading a node of the subgraph means, by its number; None if that is not known."""
        self._unnamed = ""
        """The number of the last node if its name is to come; those that pass something on need none."""
        self._open: tuple[str, str, ArgumentReader] | None = None
        """Number, type and arguments of a node whose arguments go on in the next line."""
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
        self._begin()

    def _begin(self) -> None:
        self._name = ""
        self._inputs: tuple[IrSource | None, ...] = ()
        self._signature: Signature | None = None
        self._sections: list[tuple[str, list[Frame]]] = []
        self._reversed = False

    def take(self, line: bytes, number: int) -> None:
        """Take a line of an `.ir` file, without the blanks around it."""
        if line.startswith(b"#"):
            self._take_comment(line.decode("utf-8", "replace"), number)
        elif line.startswith(b":"):
            text = line.decode("utf-8", "replace")
            if name := _NAME_COLON.match(text):
                self._name = name[1] or name[2]
            elif self._signature is None:
                self._signature = _parse_signature(text)
        elif self._open is not None and not line.startswith((b"subgraph", b"}")) and not _NODE.match(line):
            self._take_arguments(*self._open, line, is_first=False)
        elif line:
            self._finish_op()  # the next node, or the end of the graph
            self._unnamed, self._open = "", None
            if line.startswith(b"subgraph"):
                self._sources.clear()  # numbers begin again
            if match := _NODE.match(line):
                node, rest = (match[1].decode(), match[2].decode(), ArgumentReader()), line[match.end() :]
                self._take_arguments(*node, rest, is_first=True)

    def _take_arguments(
        self, node: str, op_type: str, reader: ArgumentReader, line: bytes, *, is_first: bool
    ) -> None:
        reader.take(line.decode("utf-8", "replace"))
        self._open = None if reader.is_closed else (node, op_type, reader)
        if is_first or reader.is_closed:
            arguments = reader.arguments
            self._inputs = tuple(map(self._source_of, arguments))
            self._unnamed = "" if op_type in PASSING else node
            index = _INDEX.fullmatch(arguments[1]) if len(arguments) == 2 else None
            slot = int(index[1]) if index else None
            self._sources[node] = passed_on(op_type, self._inputs, slot) if op_type in PASSING else None

    def _source_of(self, argument: str) -> IrSource | None:
        if parameter := _PARAMETER.fullmatch(argument):
            return IrSource(parameter[1], -1)
        return self._sources.get(argument[1:]) if argument.startswith("%") else None

    def add_op(
        self, name: str, inputs: tuple[IrSource | None, ...], signature: Signature, stack: Sequence[str]
    ) -> None:
        """Take an operator of another kind of file, with the lines of its stack, innermost first."""
        self._name, self._inputs, self._signature = name, inputs, signature
        for number, line in enumerate(stack, 1):
            self._take_comment(line.strip(), number)
        self._reversed = True
        self._finish_op()

    def _take_comment(self, text: str, number: int) -> None:
        if text in _SECTIONS:
            self._sections.append((_SECTIONS[text], []))
        elif "In file " not in text[:40]:
            if name := _NAME_COMMENT.match(text):
                self._name = name[1]
        elif self._name:
            parsed = _parse_frame(text)
            if parsed is None:
                self.add_problem(f"line {number} is not a line of a stack: {text[:100]!r}")
                return
            frame, is_new, self._reversed = parsed
            if not self._sections or (is_new and self._sections[-1][1]):
                self._sections.append((self._sections[-1][0] if self._sections else "op", []))
            self._sections[-1][1].append(frame)

    def _finish_op(self) -> None:
        """Add the operator whose lines were taken to the graph, if it has a name."""
        name = self._name
        if name and self._unnamed:
            self._sources[self._unnamed] = IrSource(name, 0)
        if name in self._graph.ops:
            self.add_problem(f"{name!r} is the name of two operators; the first one is used")
        elif name:
            filled = [(of, frames) for of, frames in self._sections if frames]
            own = (pair for pair in filled if not all(frame.is_framework for frame in pair[1]))
            of, frames = next(own, filled[0] if filled else ("op", []))
            stack = tuple(reversed(frames) if self._reversed else frames)
            stack = self._stacks.setdefault(stack, stack)  # most stacks occur many times
            self._graph.ops[name] = IrOp(name, stack, of, self._signature, self._inputs)
        self._begin()

    def finished(self) -> IrGraph:
        """Return the graph, after the last line."""
        self._finish_op()
        if not self._graph.ops:
            self.add_problem("no operator has a name")
        return self._graph

    def add_problem(self, problem: str) -> None:
        """Add what is wrong with the file."""
        self._graph.problems.append(problem)


def passed_on(op_type: str, inputs: Sequence[IrSource | None], slot: int | None) -> IrSource | None:
    """Return what reading a node of a type in `PASSING` means; None if that is not known.

    Args:
        op_type: the type of the node.
        inputs: what it reads.
        slot: which output a `TupleGetItem` chooses; None if it does not say.
    """
    source = inputs[0] if inputs else None
    if op_type != "TupleGetItem" or source is None:
        return source
    return None if slot is None else IrSource(source.name, slot)


@lru_cache(maxsize=4096)  # most lines occur many times
def _parse_frame(text: str) -> tuple[Frame, bool, bool] | None:
    """Return the line, whether it begins a section, and whether stacks in this spelling begin innermost."""
    match = next(filter(None, (pattern.match(text) for pattern in _STACK_LINES)), None)
    if match is None:
        return None
    code, tip, _ = match["code"].partition(_TIP)
    frame = Frame(
        match["file"],
        int(match["line"] or match["old_line"]),
        (code if tip else code.removesuffix("/")).strip(),
    )
    return frame, match["section"] is not None, match["old_line"] is not None


def _parse_signature(text: str) -> Signature | None:
    """Parse the line of types of a node: `: (<Tensor[Float32], (2, 4)>, ...) -> (<...>)`; None for others."""
    inputs, arrow, outputs = text.partition(") -> (")
    return Signature(_types(inputs), _types(outputs)) if arrow and "<Tensor[" in text else None


def _types(text: str) -> tuple[TensorType | None, ...]:
    items = _TYPED.findall(text)
    if any(item.startswith("Tuple") for item in items):
        return ()  # tuples are unfolded when the graph runs, so that their elements have slots of their own
    return tuple(map(_type, items))


def _type(item: str) -> TensorType | None:
    match = _TENSOR.match(item)
    lengths = [length for length in match[2].split(",") if length.strip()] if match else []
    if match is None or len(lengths) > _MAX_AXES or not all(map(_LENGTH.fullmatch, lengths)):
        return None
    return match[1].lower(), math.prod(map(int, lengths))
