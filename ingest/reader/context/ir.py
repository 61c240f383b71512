"""Graphs of MindSpore, from its `.ir` and `.pb` files; and which of their operators dumped ones are.

An `.ir` file has name, call stack, types and sources of every operator of a graph:

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

A `.pb` file has the same operators, edges, types and stacks:

    ModelProto   4 graph
    GraphProto   1 node   3 parameter {1 name, 2 type}   5 constant {1 name, 2 value}
    NodeProto    1 input {1 name}   2 name   3 op_type   6 output_type   8 full_name   9 stack
    TypeProto    1 data_type   2 tensor {1 element type, 2 shape {1 axis {1 length}}}
    ValueProto   1 data_type   3 int_val   4 uint_val

Nodes are named by numbers (`12`), parameters by their names, constants `cst7`. The stack is the text that
the `.ir` file has below the node, from innermost to outermost. (MindSpore, `anf_ir.proto`; fields 8 and 9 as
files of 2.0 to 2.10 have them.)

Dumped operators are matched with the operators of a graph by name. File names contain the name of an operator
with `_` for slash, dot, backslash and space; up to MindSpore 2.2 only its last part, which was unique in a
process. The numbers at the end of names (`Cast-op3`) can differ as well: MindSpore renumbers some operators
after it has chosen the file names.

Operators that have no equal name are matched among those of the same scope and type, in two orders: the order
of their first files with the order of execution, and the order of their numbers in both. Either may be wrong.
In a network of casts the new numbers follow execution and the old ones the program, and operators that do not
wait for each other are dumped in any order. So an order that contradicts the types is dropped. If two
different orders remain, or none, an operator is matched only if it is the only one with its types.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeAlias

from ingest.reader.context.files import Frame, Problems
from workers.dump.formats.header import MAX_NDIM
from workers.dump.formats.tensor_proto import LENGTH_DELIMITED, FieldWalk, WireField, read_varint
from workers.errors import UnreadableTensor

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
    stack: tuple[Frame, ...]
    """From outermost to innermost; empty if the file does not have a stack for it."""
    of: str
    """Whose stack it is: of the `op` itself, of one `fused op` in it, or of its `forward op`."""
    signature: Signature | None
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
    for number, line in enumerate(lines_of(pieces), 1):
        parser.take(line.strip(), number)
    return parser.finished()


def lines_of(pieces: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Yield lines without their ends, cut to 64 KiB: only those with large constants are longer."""
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
        self.graph = IrGraph()
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
                self.graph.problems.append(f"line {number} is not a line of a stack: {text[:100]!r}")
                return
            frame, is_new, self._reversed = parsed
            if not self._sections or (is_new and self._sections[-1][1]):
                self._sections.append((self._sections[-1][0] if self._sections else "op", []))
            self._sections[-1][1].append(frame)

    def _finish_op(self) -> None:
        name = self._name
        if name and self._unnamed:
            self._sources[self._unnamed] = IrSource(name, 0)
        if name in self.graph.ops:
            self.graph.problems.append(f"{name!r} is the name of two operators; the first one is used")
        elif name:
            filled = [(of, frames) for of, frames in self._sections if frames]
            own = (pair for pair in filled if not all(frame.is_framework for frame in pair[1]))
            of, frames = next(own, filled[0] if filled else ("op", []))
            stack = tuple(reversed(frames) if self._reversed else frames)
            stack = self._stacks.setdefault(stack, stack)  # most stacks occur many times
            self.graph.ops[name] = IrOp(name, stack, of, self._signature, self._inputs)
        self._begin()

    def finished(self) -> IrGraph:
        """Return the graph, after the last line."""
        self._finish_op()
        if not self.graph.ops:
            self.graph.problems.append("no operator has a name")
        return self.graph


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


#: Fields of all messages of a file that are walked over: 30 million nodes would take a minute.
_MAX_FIELDS = 30_000_000
_TENSOR_KIND = 14
#: Lists and tuples: their elements have slots of their own when the graph runs.
_SEQUENCES = frozenset({31, 32})
#: `DataType` of anf_ir.proto, in the spelling of the dump.
_DTYPES = dict(
    enumerate(
        (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64"),
        ),
        1,
    )
)
#: The fields of a node, but for its inputs.
_OF_NODE = frozenset({2, 3, 6, 8, 9})


def parse_pb(pieces: Iterable[bytes | bytearray]) -> IrGraph:
    """Parse a `.pb` graph. The time is proportional to its size; any content is accepted.

    Args:
        pieces: the content, cut at any bytes.
    """
    parser = IrParser()
    try:
        _PbGraph(b"".join(pieces), parser).read()
    except UnreadableTensor as exc:
        parser.graph.problems.append(str(exc))
    return parser.finished()


class _PbGraph:
    """The graph of a file. Its fields are walked over: a list of them may take a hundred times its memory."""

    def __init__(self, data: bytes, parser: IrParser) -> None:
        self._data = data
        self._parser = parser
        self._walk = FieldWalk(lambda offset, nbytes: data[offset : offset + nbytes], limit=_MAX_FIELDS)
        self._sources: dict[str, IrSource | None] = {}
        self._types: dict[str, TensorType | None] = {}
        self._constants: dict[str, int] = {}
        self._sequences: set[str] = set()
        """Nodes, parameters and constants that are lists or tuples."""

    def read(self) -> None:
        """Add the operators to the graph of the parser.

        Raises:
            UnreadableTensor: it is not a message of protobuf.
        """
        for model in self._walk.fields(0, len(self._data)):
            if model.number == 4:
                # Nodes come first in the file, and read what stands behind them.
                for part in self._inside(model, 3, 5):
                    self._add_parameter_or_constant(part)
                for node in self._inside(model, 1):
                    self._add_node(node)

    def _inside(self, message: WireField, *numbers: int) -> Iterator[WireField]:
        if message.wire_type == LENGTH_DELIMITED:
            for part in self._walk.fields(message.value, message.end):
                if part.number in numbers:
                    yield part

    def _text(self, field: WireField | None) -> str:
        return "" if field is None else self._data[field.value : field.end].decode("utf-8", "replace")

    def _numbers(self, message: WireField, *numbers: int) -> Iterator[int]:
        for part in self._inside(message, *numbers):
            if part.wire_type == 0:
                yield read_varint(lambda offset, nbytes: self._data[offset : offset + nbytes], part)

    def _add_parameter_or_constant(self, message: WireField) -> None:
        parts = {part.number: part for part in self._inside(message, 1, 2)}
        name, about = self._text(parts.get(1)), parts.get(2)
        if message.number == 3:
            self._sources[name] = IrSource(name, -1)
            self._types[name] = None if about is None else self._type(about)
        elif about is not None:
            for value in self._numbers(about, 3, 4):
                self._constants[name] = value
            self._note_sequence(name, about)

    def _note_sequence(self, name: str, about: WireField) -> None:
        if not _SEQUENCES.isdisjoint(self._numbers(about, 1)):
            self._sequences.add(name)

    def _add_node(self, message: WireField) -> None:
        parts = {part.number: part for part in self._inside(message, *_OF_NODE)}
        read = [self._text(name) for part in self._inside(message, 1) for name in self._inside(part, 1)]
        index, op_type, full_name, stack = (self._text(parts.get(number)) for number in (2, 3, 8, 9))
        inputs = tuple(map(self._sources.get, read))
        output = None
        if (about := parts.get(6)) is not None:
            output = self._type(about)
            self._note_sequence(index, about)
        self._types[index] = output
        self._sources[index] = IrSource(full_name, 0) if full_name else None
        if op_type in PASSING:
            slot = self._constants.get(read[1]) if len(read) == 2 else None
            self._sources[index] = passed_on(op_type, inputs, slot)
        if full_name:
            is_plain = self._sequences.isdisjoint(read)
            types = tuple(map(self._types.get, read)) if is_plain else ()
            signature = Signature(types, () if index in self._sequences else (output,))
            self._parser.add_op(full_name, inputs, signature, stack.splitlines())

    def _type(self, message: WireField) -> TensorType | None:
        """Return the type of a tensor; None for what is not one, or of a type that is not known."""
        if _TENSOR_KIND not in self._numbers(message, 1):
            return None
        element, lengths = 0, list[int]()
        for tensor in self._inside(message, 2):
            element = next(self._numbers(tensor, 1), 0)
            for shape in self._inside(tensor, 2):
                axes = islice(self._inside(shape, 1), MAX_NDIM + 1)
                lengths = [next(self._numbers(axis, 1), 0) for axis in axes]
        # A length that is not known is -1, as 64 bits.
        if element not in _DTYPES or len(lengths) > MAX_NDIM or max(lengths, default=0) >= 2**63:
            return None
        return _DTYPES[element], math.prod(lengths)


EXACT, BY_TYPE, AMBIGUOUS = "exact", "by scope and type", "ambiguous"

_REPLACED = re.compile(r"[/.\\ ]")
_NUMBERED = re.compile(r"(.*)-op(\d{1,18})", re.DOTALL)
#: Pairs of operators whose types are compared; larger groups stay ambiguous.
_MAX_PAIRS = 100_000
#: Names in an `OperatorMatch` that is ambiguous.
_MAX_CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class DumpedOp:
    """An operator as its dumped files describe it."""

    name: str
    first: int = -1
    """When its first file was written, in microseconds since the epoch; -1 if that is not known."""
    types: Mapping[tuple[str, int], TensorType] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GraphOp:
    """An operator as a graph file names it."""

    name: str
    signature: Signature | None = None
    runs: bool = True
    """Whether it is in the execution order. Operators that are not are matched only by their exact name."""

    def allows(self, op: DumpedOp) -> bool:
        """Return whether a dumped operator may be this one, by its types."""
        return self.signature is None or self.signature.allows(op.types)


@dataclass(frozen=True, slots=True)
class OperatorMatch:
    """The name of a dumped operator in a graph, and how it was matched."""

    names: tuple[str, ...]
    """Full names with scope: one name or, if the match is ambiguous, the first ones of the candidates."""
    how: str
    """`exact`, `by scope and type`, or `ambiguous`."""

    @property
    def name(self) -> str | None:
        """The full name; None if the match is ambiguous."""
        return self.names[0] if self.how != AMBIGUOUS else None

    @property
    def is_whole(self) -> bool:
        """Whether `names` has all candidates."""
        return len(self.names) < _MAX_CANDIDATES


def flatten(name: str) -> str:
    """Return a name as file names contain it; MindSpore 1.1 and 1.2 write `--` for `/`."""
    return _REPLACED.sub("_", name.replace("--", "/"))


def match_ops(dumped: Iterable[DumpedOp], graph: Sequence[GraphOp]) -> dict[str, OperatorMatch]:
    """Match dumped operators with those of one graph.

    Args:
        dumped: all operators of the graph that were dumped in one step.
        graph: the operators of the graph, in order of execution.

    Returns:
        The matches by name in the dump. Operators are left out if the graph has none of their scope and type.
    """
    by_name, by_stem = _index(graph)
    matches: dict[str, OperatorMatch] = {}
    unmatched: dict[str, list[DumpedOp]] = defaultdict(list)
    for op in dumped:
        flat = flatten(op.name)
        if len(targets := by_name.get(flat, [])) == 1:
            matches[op.name] = OperatorMatch((targets[0].name,), EXACT)
        elif targets:
            matches[op.name] = _ambiguous(targets)
        else:
            unmatched[_stem(flat)[0]].append(op)
    taken = {name for match in matches.values() for name in match.names}
    for stem, ops in unmatched.items():
        free = [target for target in by_stem.get(stem, ()) if target.name not in taken]
        matches |= _match_group(ops, free)
    return matches


def _index(graph: Sequence[GraphOp]) -> tuple[dict[str, list[GraphOp]], dict[str, list[GraphOp]]]:
    """Return the operators by name, and those that run by scope and type, both as in names of files."""
    full: dict[str, list[GraphOp]] = defaultdict(list)
    last: dict[str, list[GraphOp]] = defaultdict(list)
    for op in graph:
        full[flatten(op.name)].append(op)
        last[flatten(op.name.rpartition("/")[2])].append(op)
    by_stem: dict[str, list[GraphOp]] = {}
    # Full names take precedence: the last part of another name may be equal to one.
    for names in (last, full):
        stems: dict[str, list[GraphOp]] = defaultdict(list)
        for flat, ops in names.items():
            stems[_stem(flat)[0]] += [op for op in ops if op.runs]
        by_stem |= stems
    return {**last, **full}, by_stem


def _stem(flat: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(flat)
    return (match[1], int(match[2])) if match else (flat, -1)


def _match_group(ops: list[DumpedOp], free: list[GraphOp]) -> dict[str, OperatorMatch]:
    """Match dumped operators of one scope and type, whose names the graph does not have.

    If not one pairing of all is possible, those are matched whose types allow exactly one; the others are
    ambiguous.

    Args:
        ops: the dumped operators.
        free: the operators of the graph of that scope and type which are not matched yet.
    """
    if not free:
        return {}
    pairings = _possible_pairings(ops, free) if len(ops) == len(free) else []
    if len(pairings) == 1:
        return {name: OperatorMatch((target.name,), BY_TYPE) for name, target in pairings[0].items()}
    if len(ops) * len(free) > _MAX_PAIRS:
        return {op.name: _ambiguous(free) for op in ops}
    return _match_by_type(ops, free)


def _match_by_type(ops: list[DumpedOp], free: list[GraphOp]) -> dict[str, OperatorMatch]:
    candidates = {op.name: [target for target in free if target.allows(op)] for op in ops}
    uses = Counter(target.name for targets in candidates.values() for target in targets)
    return {
        name: OperatorMatch((targets[0].name,), BY_TYPE)
        if len(targets) == 1 and uses[targets[0].name] == 1
        else _ambiguous(targets or free)
        for name, targets in candidates.items()
    }


def _possible_pairings(ops: list[DumpedOp], free: list[GraphOp]) -> list[dict[str, GraphOp]]:

    def number(op: DumpedOp | GraphOp) -> int:
        return _stem(flatten(op.name))[1]

    numbered = sorted(ops, key=number)
    timed = sorted(numbered, key=lambda op: op.first)
    pairings: list[dict[str, GraphOp]] = []
    for dumped, targets in ((numbered, sorted(free, key=number)), (timed, free)):
        pairing = {op.name: target for op, target in zip(dumped, targets, strict=True)}
        is_possible = all(target.allows(op) for op, target in zip(dumped, targets, strict=True))
        if is_possible and pairing not in pairings:
            pairings.append(pairing)
    return pairings


def _ambiguous(targets: Sequence[GraphOp]) -> OperatorMatch:
    return OperatorMatch(tuple(target.name for target in targets[:_MAX_CANDIDATES]), AMBIGUOUS)
