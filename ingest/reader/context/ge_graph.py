"""Edges and original operators in the graphs that GE writes as text (`DUMP_GE_GRAPH`).

    graph {
      name: "online_0"
      op {
        name: "Add_1"
        type: "Add"
        input: "Mul_1:0"            the output 0 of Mul_1; `:-1` is a control edge
        attr {
          key: "_datadump_original_op_names"
          value {
            list {
              s: "bert/add"
              s: "bert/bias"
            }
          }
        }
        output_desc {               once for each output, in order
          attr {
            key: "_datadump_origin_name"
            value { s: "bert/bias" }                 each on a line of its own, as above
          }
          attr {
            key: "_datadump_origin_output_index"
            value { i: 0 }
          }
        }
      }
    }

`ge_proto_*_Build.txt` is the graph that runs: its operators have the names of the dump.
`ge_onnx_*_Build.pbtxt` has the same graph as text of an ONNX model, which counts where the other is missing
(`DUMP_GRAPH_FORMAT=onnx`):

    graph {
      node {
        input: "Mul_1:0"
        name: "Add_1"
        op_type: "ge:Add"
        attribute {
          name: "_datadump_original_op_names"
          strings: "bert/add"
          strings: "bert/bias"
        }
        attribute {
          name: "output_desc_attr__datadump_origin_name:0"
          s: "bert/bias"
        }
        attribute {
          name: "output_desc_attr__datadump_origin_output_index:0"
          i: 0
        }
      }
      node {                        a subgraph: `attribute { name: "graph"  g { node { ... } } }`
        op_type: "subgraph"
        ...

(CANN, environment variables `DUMP_GE_GRAPH` and `DUMP_GRAPH_FORMAT`; TorchAir, `dump_layer`; GraphEngine,
`ge_ir_utils.cc`, `ge_attr_define.h`: `ATTR_NAME_DATA_DUMP_ORIGIN_NAME`. As text of an ONNX model, names are
there only with `DUMP_GE_GRAPH=1`.) Bytes other than ASCII are escaped in octal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ingest.reader.context.match import flatten
from ingest.reader.context.non_tensor_files import NonTensorFile, NonTensorFiles
from ingest.reader.indexed_tensor import IndexedTensor
from workers.model import MIB

_FILE = re.compile(r"ge_(?P<kind>proto|onnx)_(?P<graph>.*_Build)\.(?:txt|pbtxt)")
_TEXT = re.compile(r'(name|type|op_type|input|key|s|strings)\s*:\s*"((?:[^"\\]|\\.)*)"')
_SLOT = re.compile(r"[0-9]{1,6}")
_INTEGER = re.compile(r"i\s*:\s*([0-9]{1,6})")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
#: Blocks that are an operator, and an attribute of it; of GE, of ONNX, and of an ONNX subgraph.
_OPS = frozenset({("graph", "op"), ("graph", "node"), ("graph", "node", "attribute", "g", "node")})
_ATTRS = frozenset({(*op, {"op": "attr", "node": "attribute"}[op[-1]]) for op in _OPS})
_OUTPUT = ("graph", "op", "output_desc")
_ATTR_OF_OUTPUT = (*_OUTPUT, "attr")
#: Deeper blocks are counted, and what is in them is passed over: an attribute holds a list of messages.
_MAX_BLOCKS = 16
_ORIGINAL = "_datadump_original_op_names"
_MODEL_NAME, _MODEL_SLOT = "_datadump_origin_name", "_datadump_origin_output_index"
#: How ONNX spells an attribute of an output.
_OF_OUTPUT = re.compile(r"output_desc_attr_(\w+):([0-9]{1,6})")
_TYPE_OF_GE = "ge:"
_MAX_NBYTES = 256 * MIB
_MAX_LINE = 1_000_000


class GeEdge(NamedTuple):
    """What feeds an input."""

    op_name: str
    """As the graph spells it."""
    slot: int
    """The slot of its output."""


class ModelOutput(NamedTuple):
    """An output of an operator of the model, before it was compiled."""

    op_name: str
    """As the model spells it."""
    slot: int


@dataclass(slots=True)
class GeOp:
    """One operator of a graph."""

    name: str = ""
    op_type: str = ""
    inputs: list[GeEdge | None] = field(default_factory=list)
    """By slot; None for an input that is not connected. Control edges are left out."""
    originals: list[str] = field(default_factory=list)
    """The operators of the model that were fused into it."""
    model_names: dict[int, str] = field(default_factory=dict)
    model_slots: dict[int, int] = field(default_factory=dict)
    """By slot of an output, the operator and slot of the model whose output it is."""

    def model_output(self, slot: int) -> ModelOutput | None:
        """Return the output of the model that an output is; None if the graph does not tell both parts."""
        if slot not in self.model_names or slot not in self.model_slots:
            return None
        return ModelOutput(self.model_names[slot], self.model_slots[slot])


@dataclass(slots=True)
class GeGraph:
    """A graph that GE wrote."""

    name: str = ""
    ops: dict[str, GeOp] = field(default_factory=dict)
    """By name as files have it."""


def parse_ge_graph(pieces: Iterable[bytes | bytearray]) -> GeGraph:
    """Parse a graph in the text format of protobuf, in one pass. Lines that are not understood are left out.

    Memory: that of the operators; the attributes are passed over.
    """
    parser = _Parser()
    for line in _lines(pieces):
        parser.take(line.strip())
    return parser.graph


@dataclass(slots=True)
class _Parser:
    """Takes lines, and knows the blocks that they are in."""

    graph: GeGraph = field(default_factory=GeGraph)
    op: GeOp = field(default_factory=GeOp)
    blocks: tuple[str, ...] = ()
    deeper: int = 0
    """Open blocks below those that are kept."""
    key: str = ""
    """That of the attribute, as GE spells it."""
    output: int = -1
    """The slot of the output that the attribute is about; -1 before the first."""

    def take(self, line: str) -> None:
        if line.endswith("{"):
            self._open(line[:-1].rstrip(": "))
        elif line == "}":
            self._close()
        elif self.deeper:
            return
        elif match := _TEXT.match(line):
            self._take_text(match[1], _unescaped(match[2]))
        elif self.key == _MODEL_SLOT and (match := _INTEGER.fullmatch(line)):
            self.op.model_slots[self.output] = int(match[1])

    def _open(self, name: str) -> None:
        if self.deeper or len(self.blocks) == _MAX_BLOCKS:
            self.deeper += 1
            return
        self.blocks = (*self.blocks, name)
        if self.blocks in _OPS:
            self.op = GeOp()
            self.output = -1
        elif self.blocks == _OUTPUT:
            self.output += 1
        elif self._is_attr:
            self.key = ""

    @property
    def _is_attr(self) -> bool:
        return self.blocks in _ATTRS or self.blocks == _ATTR_OF_OUTPUT

    def _close(self) -> None:
        if self.deeper:
            self.deeper -= 1
            return
        if self.blocks in _OPS and self.op.name:
            self.graph.ops.setdefault(flatten(self.op.name), self.op)
            self.op = GeOp()  # the operator around a subgraph has another name, and no edges
        elif self._is_attr:
            self.key = ""
        self.blocks = self.blocks[:-1]

    def _take_text(self, field_name: str, text: str) -> None:
        if self.blocks == ("graph",) and field_name == "name":
            # Subgraphs follow the graph, whose name the dump has.
            self.graph.name = self.graph.name or text
        elif self.blocks in _OPS:
            self._take_of_op(field_name, text)
        elif self._is_attr and field_name in ("key", "name"):
            self._take_key(text)
        elif self.key == _ORIGINAL and field_name in ("s", "strings"):
            self.op.originals.append(text)
        elif self.key == _MODEL_NAME and field_name == "s":
            self.op.model_names[self.output] = text

    def _take_key(self, text: str) -> None:
        self.key = text
        if match := _OF_OUTPUT.fullmatch(text):
            self.key, self.output = match[1], int(match[2])

    def _take_of_op(self, field_name: str, text: str) -> None:
        if field_name == "name":
            self.op.name = text
        elif field_name in ("type", "op_type"):
            self.op.op_type = text.removeprefix(_TYPE_OF_GE)
        elif field_name == "input":
            source, _, slot = text.rpartition(":")
            if slot != "-1":
                is_edge = bool(source) and _SLOT.fullmatch(slot) is not None
                self.op.inputs.append(GeEdge(source, int(slot)) if is_edge else None)


def _unescaped(text: str) -> str:
    """Return a text of protobuf without its escapes."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_plain, text.encode()).decode("utf-8", "replace")


def _plain(match: re.Match[bytes]) -> bytes:
    escaped = match[1]
    if escaped[:1].isdigit() and escaped[:1] < b"8":
        return bytes([int(escaped, 8) & 0xFF])
    return _ESCAPED.get(escaped, escaped)


def _lines(pieces: Iterable[bytes | bytearray]) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + bytes(piece)).split(b"\n")
        for line in whole:
            if len(line) < _MAX_LINE:
                yield line.decode("utf-8", "replace")
        rest = rest[:_MAX_LINE]
    yield rest.decode("utf-8", "replace")


@dataclass(eq=False)
class GeGraphs:
    """The graphs of GE that the dump of a rank has. They are parsed when the first is needed, and kept."""

    files: NonTensorFiles
    _graphs: list[GeGraph] | None = None

    def source(self, tensor: IndexedTensor) -> GeEdge | None:
        """Return the source of an input, by the names of files; None if it is not known."""
        op = self._op(tensor)
        if op is None or not 0 <= tensor.slot < len(op.inputs):
            return None
        edge = op.inputs[tensor.slot]
        return None if edge is None else GeEdge(flatten(edge.op_name), edge.slot)

    def originals(self, tensor: IndexedTensor) -> tuple[str, ...]:
        """Return the operators of the model that were fused into that of a tensor; empty if not known."""
        op = self._op(tensor)
        return () if op is None else tuple(op.originals)

    def model_output(self, tensor: IndexedTensor) -> ModelOutput | None:
        """Return the output of the model that an output is, by names of files; None if not known."""
        op = self._op(tensor) if tensor.io == "output" else None
        output = None if op is None else op.model_output(tensor.slot)
        return None if output is None else ModelOutput(flatten(output.op_name), output.slot)

    def _op(self, tensor: IndexedTensor) -> GeOp | None:
        """Return the operator of a tensor, in a graph with the name of its net, or else in the only graph."""
        graphs = self._parsed()
        if len(graphs) > 1:
            net = flatten(tensor.net)
            graphs = [graph for graph in graphs if flatten(graph.name) == net]
        return next((graph.ops[tensor.op_name] for graph in graphs if tensor.op_name in graph.ops), None)

    def _parsed(self) -> list[GeGraph]:
        # Asked for each input of a step: almost all dumps have no such file. Each process writes its own.
        if self._graphs is None:
            kept = self.files.of_step(None).values()
            files: dict[str, NonTensorFile] = {}
            """By what both spellings of a graph have in common."""
            for file in kept:
                match = _FILE.fullmatch(file.name)
                if match and file.nbytes <= _MAX_NBYTES:
                    twin = f"{file.source.rpartition('/')[0]}/{match['graph']}"
                    if match["kind"] == "proto" or twin not in files:
                        files[twin] = file
            self._graphs = [self.files.parse(file, parse_ge_graph) or GeGraph() for file in files.values()]
        return self._graphs
