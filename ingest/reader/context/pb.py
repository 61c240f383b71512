"""Parse MindSpore's `.pb` graphs: the same operators, edges, types and stacks as in its `.ir` files.

    ModelProto   4 graph
    GraphProto   1 node   3 parameter {1 name, 2 type}   5 constant {1 name, 2 value}
    NodeProto    1 input {1 name}   2 name   3 op_type   6 output_type   8 full_name   9 stack
    TypeProto    1 data_type   2 tensor {1 element type, 2 shape {1 axis {1 length}}}
    ValueProto   1 data_type   3 int_val   4 uint_val

Nodes are named by numbers (`12`), parameters by their names, constants `cst7`. The stack is the text that
the `.ir` file has below the node, from innermost to outermost. (MindSpore, `anf_ir.proto`; fields 8 and 9 as
files of 2.0 to 2.10 have them.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ingest.reader.context.ir import IrGraph, IrParser
from ingest.reader.context.ir_nodes import PASSING, IrSource
from ingest.reader.context.signature import Signature, TensorType
from workers.dump.formats.header import MAX_NDIM
from workers.dump.formats.wire import LENGTH_DELIMITED, FieldWalk, WireField, read_varint
from workers.errors import UnreadableTensor

#: Fields of all messages of a file that are walked over: 30 million nodes would take a minute.
_MAX_FIELDS = 30_000_000
_TENSOR = 14
#: Lists and tuples: their elements have slots of their own when the graph runs.
_SEQUENCES = frozenset({31, 32})
#: `DataType` of anf_ir.proto, in the spelling of the dump.
_DTYPES = {
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float16",
    11: "float32",
    12: "float64",
}


def parse_pb(pieces: Iterable[bytes | bytearray]) -> IrGraph:
    """Parse a `.pb` graph. The time is proportional to its size; any content is accepted.

    Args:
        pieces: the content, cut at any bytes.
    """
    parser = IrParser()
    try:
        _PbGraph(b"".join(pieces), parser).read()
    except UnreadableTensor as exc:
        parser.add_problem(str(exc))
    if not parser.graph.ops:
        parser.add_problem("no operator has a name")
    return parser.graph


@dataclass(slots=True)
class _PbNode:
    """One node, and what reading it means."""

    index: str = ""
    op_type: str = ""
    full_name: str = ""
    stack: str = ""
    inputs: list[str] = field(default_factory=list)
    output: TensorType | None = None
    is_sequence: bool = False


class _PbGraph:
    """The graph of a file: its fields are walked over once."""

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
                self._add_graph(model)

    def _add_graph(self, graph: WireField) -> None:
        # Nodes come first in the file, and read what stands behind them. It is walked over twice, because a
        # list of its fields may take a hundred times the memory of the file.
        for part in self._inside(graph):
            if part.number == 3:
                self._add_parameter(part)
            elif part.number == 5:
                self._add_constant(part)
        for part in self._inside(graph):
            if part.number == 1:
                self._add_node(self._node(part))

    def _inside(self, message: WireField) -> Iterator[WireField]:
        if message.wire_type == LENGTH_DELIMITED:
            yield from self._walk.fields(message.value, message.end)

    def _text(self, field: WireField) -> str:
        return self._data[field.value : field.end].decode("utf-8", "replace")

    def _number(self, field: WireField) -> int:
        return read_varint(lambda offset, nbytes: self._data[offset : offset + nbytes], field)

    def _add_parameter(self, message: WireField) -> None:
        name, kind = "", None
        for part in self._inside(message):
            if part.number == 1:
                name = self._text(part)
            elif part.number == 2:
                kind = self._type(part)
        self._sources[name] = IrSource(name, -1)
        self._types[name] = kind

    def _add_constant(self, message: WireField) -> None:
        name = ""
        for part in self._inside(message):
            if part.number == 1:
                name = self._text(part)
            elif part.number == 2:
                self._add_value(name, part)

    def _add_value(self, name: str, message: WireField) -> None:
        for value in self._inside(message):
            if value.wire_type != 0:
                continue
            if value.number in (3, 4):
                self._constants[name] = self._number(value)
            elif value.number == 1 and self._number(value) in _SEQUENCES:
                self._sequences.add(name)

    def _node(self, message: WireField) -> _PbNode:
        node = _PbNode()
        for part in self._inside(message):
            if part.number == 1:
                node.inputs += [self._text(name) for name in self._inside(part) if name.number == 1]
            elif part.number == 2:
                node.index = self._text(part)
            elif part.number == 3:
                node.op_type = self._text(part)
            elif part.number == 6:
                node.output = self._type(part)
                node.is_sequence = self._is_sequence(part)
            elif part.number == 8:
                node.full_name = self._text(part)
            elif part.number == 9:
                node.stack = self._text(part)
        return node

    def _add_node(self, node: _PbNode) -> None:
        inputs = tuple(self._sources.get(name) for name in node.inputs)
        self._types[node.index] = node.output
        self._sources[node.index] = self._meaning(node, inputs)
        if node.is_sequence:
            self._sequences.add(node.index)
        if node.full_name:
            is_plain = self._sequences.isdisjoint(node.inputs)
            types = tuple(self._types.get(name) for name in node.inputs) if is_plain else ()
            signature = Signature(types, () if node.is_sequence else (node.output,))
            self._parser.add_op(node.full_name, inputs, signature, node.stack.splitlines())

    def _meaning(self, node: _PbNode, inputs: tuple[IrSource | None, ...]) -> IrSource | None:
        """Return the value that reading a node gives; None if it is not known."""
        if node.op_type in PASSING:
            return inputs[0] if inputs else None
        if node.op_type == "TupleGetItem":
            slot = self._constants.get(node.inputs[1]) if len(inputs) == 2 else None
            source = inputs[0] if slot is not None else None
            return None if source is None or slot is None else IrSource(source.name, slot)
        return IrSource(node.full_name, 0) if node.full_name else None

    def _type(self, message: WireField) -> TensorType | None:
        """Return the type of a tensor; None for what is not one, or of a type that is not known."""
        is_tensor, element, lengths = False, 0, list[int]()
        for part in self._inside(message):
            if part.number == 1 and part.wire_type == 0:
                is_tensor = self._number(part) == _TENSOR
            elif part.number == 2:
                for tensor in self._inside(part):
                    if tensor.number == 1 and tensor.wire_type == 0:
                        element = self._number(tensor)
                    elif tensor.number == 2:
                        lengths = list(islice(self._lengths(tensor), MAX_NDIM + 1))
        if not is_tensor or element not in _DTYPES or not _are_known(lengths):
            return None
        return _DTYPES[element], math.prod(lengths)

    def _is_sequence(self, message: WireField) -> bool:
        kinds = [
            self._number(part) for part in self._inside(message) if part.number == 1 and not part.wire_type
        ]
        return not _SEQUENCES.isdisjoint(kinds)

    def _lengths(self, shape: WireField) -> Iterator[int]:
        for axis in self._inside(shape):
            sizes = [self._number(size) for size in self._inside(axis) if size.number == 1]
            yield sizes[-1] if sizes else 0


def _are_known(lengths: Sequence[int]) -> bool:
    """Return whether lengths of axes are those of an array: one that is not known is -1, as 64 bits."""
    return len(lengths) <= MAX_NDIM and max(lengths, default=0) < 2**63
