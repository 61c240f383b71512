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
from collections.abc import Iterable, Iterator
from itertools import islice

from ingest.reader.context.ir import PASSING, IrGraph, IrParser, IrSource, Signature, TensorType, passed_on
from workers.dump.formats.header import MAX_NDIM
from workers.dump.formats.wire import LENGTH_DELIMITED, FieldWalk, WireField, read_varint
from workers.errors import UnreadableTensor

#: Fields of all messages of a file that are walked over: 30 million nodes would take a minute.
_MAX_FIELDS = 30_000_000
_TENSOR = 14
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
        parser.add_problem(str(exc))
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
        """Yield the values of fields that are numbers."""
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
        if _TENSOR not in self._numbers(message, 1):
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
