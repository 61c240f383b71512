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
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ingest.reader.context.files import NonTensorFile, NonTensorFiles
from ingest.reader.context.ir import IrSource, flatten, lines_of
from workers.model import MIB

if TYPE_CHECKING:
    from ingest.reader.tensor import Tensor

_FILE = re.compile(r"ge_(?P<kind>proto|onnx)_(?P<graph>.*_Build)\.(?:txt|pbtxt)")
_TEXT = re.compile(r'(name|type|op_type|input|key|s|strings)\s*:\s*"((?:[^"\\]|\\.)*)"')
_EDGE = re.compile(r"(.+):([0-9]{1,6})", re.DOTALL)
_INTEGER = re.compile(r"i\s*:\s*([0-9]{1,6})")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
#: Blocks that are an operator, and an attribute of it; of GE, of ONNX, and of an ONNX subgraph.
_OPS = frozenset({("graph", "op"), ("graph", "node"), ("graph", "node", "attribute", "g", "node")})
_OUTPUT = ("graph", "op", "output_desc")
_ATTRS = frozenset({*((*op, {"op": "attr", "node": "attribute"}[op[-1]]) for op in _OPS), (*_OUTPUT, "attr")})
#: Deeper blocks are counted, and what is in them is passed over: an attribute holds a list of messages.
_MAX_BLOCKS = 16
_ORIGINAL = "_datadump_original_op_names"
_MODEL_NAME, _MODEL_SLOT = "_datadump_origin_name", "_datadump_origin_output_index"
#: How ONNX spells an attribute of an output.
_OF_OUTPUT = re.compile(r"output_desc_attr_(\w+):([0-9]{1,6})")
_MAX_NBYTES = 256 * MIB


class ModelOutput(NamedTuple):
    """An output of an operator of the model, before it was compiled."""

    op_name: str
    slot: int


@dataclass(slots=True)
class GeOp:
    """One operator of a graph."""

    name: str = ""
    op_type: str = ""
    inputs: list[IrSource | None] = field(default_factory=list)
    """By slot; None for an input that is not connected. Control edges are left out."""
    originals: list[str] = field(default_factory=list)
    """The operators of the model that were fused into it."""
    model_names: dict[int, str] = field(default_factory=dict)
    model_slots: dict[int, int] = field(default_factory=dict)
    """By slot of an output, the operator and slot of the model whose output it is."""

    def model_output(self, slot: int) -> ModelOutput | None:
        """Return the output of the model that an output is; None if the graph does not tell both parts."""
        name, of_model = self.model_names.get(slot), self.model_slots.get(slot)
        return None if name is None or of_model is None else ModelOutput(name, of_model)


@dataclass(slots=True)
class GeGraph:
    """A graph that GE wrote, and its operators by name as files have it."""

    name: str = ""
    ops: dict[str, GeOp] = field(default_factory=dict)


def parse_ge_graph(pieces: Iterable[bytes | bytearray]) -> GeGraph:
    """Parse a graph in the text format of protobuf, in one pass. Lines that are not understood are left out.

    Memory: that of the operators; the attributes are passed over.
    """
    parser = _Parser()
    for line in lines_of(pieces):
        parser.take(line.decode("utf-8", "replace").strip())
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
            self.op, self.output = GeOp(), -1
        elif self.blocks == _OUTPUT:
            self.output += 1
        elif self.blocks in _ATTRS:
            self.key = ""

    def _close(self) -> None:
        if self.deeper:
            self.deeper -= 1
            return
        if self.blocks in _OPS and self.op.name:
            self.graph.ops.setdefault(flatten(self.op.name), self.op)
            self.op = GeOp()  # the operator around a subgraph has another name, and no edges
        elif self.blocks in _ATTRS:
            self.key = ""
        self.blocks = self.blocks[:-1]

    def _take_text(self, field_name: str, text: str) -> None:
        match field_name:
            case "name" if self.blocks == ("graph",):
                # Subgraphs follow the graph, whose name the dump has.
                self.graph.name = self.graph.name or text
            case "name" if self.blocks in _OPS:
                self.op.name = text
            case "type" | "op_type" if self.blocks in _OPS:
                self.op.op_type = text.removeprefix("ge:")
            case "input" if self.blocks in _OPS and not text.endswith(":-1"):
                edge = _EDGE.fullmatch(text)
                self.op.inputs.append(IrSource(edge[1], int(edge[2])) if edge else None)
            case "key" | "name" if self.blocks in _ATTRS:
                self.key = text
                if match := _OF_OUTPUT.fullmatch(text):
                    self.key, self.output = match[1], int(match[2])
            case "s" | "strings" if self.key == _ORIGINAL:
                self.op.originals.append(text)
            case "s" if self.key == _MODEL_NAME:
                self.op.model_names[self.output] = text


def _unescaped(text: str) -> str:

    def plain(match: re.Match[bytes]) -> bytes:
        is_octal = match[1][:1] in b"01234567"
        return bytes([int(match[1], 8) & 0xFF]) if is_octal else _ESCAPED.get(match[1], match[1])

    return _ESCAPE.sub(plain, text.encode()).decode("utf-8", "replace") if "\\" in text else text


@dataclass(eq=False)
class GeGraphs:
    """The graphs of GE that the dump of a rank has. They are parsed when the first is needed, and kept."""

    files: NonTensorFiles
    _graphs: list[GeGraph] | None = None

    def source(self, tensor: Tensor) -> IrSource | None:
        """Return the source of an input, by the names of files; None if it is not known."""
        op = self.op_of(tensor)
        edge = op.inputs[tensor.slot] if op and 0 <= tensor.slot < len(op.inputs) else None
        return edge and edge._replace(name=flatten(edge.name))

    def model_output(self, tensor: Tensor) -> ModelOutput | None:
        """Return the output of the model that an output is, by names of files; None if not known."""
        op = self.op_of(tensor) if tensor.io == "output" else None
        output = None if op is None else op.model_output(tensor.slot)
        return output and output._replace(op_name=flatten(output.op_name))

    def op_of(self, tensor: Tensor) -> GeOp | None:
        """Return the operator of a tensor, in a graph with the name of its net, or else in the only graph."""
        # Asked for each input of a step: almost all dumps have no such file. Each process writes its own.
        if self._graphs is None:
            files = self._files().values()
            self._graphs = [self.files.parse(file, parse_ge_graph) or GeGraph() for file in files]
        graphs = self._graphs
        if len(graphs) > 1:
            net = flatten(tensor.net)
            graphs = [graph for graph in graphs if flatten(graph.name) == net]
        return next((graph.ops[tensor.op_name] for graph in graphs if tensor.op_name in graph.ops), None)

    def _files(self) -> dict[str, NonTensorFile]:
        """Return one file of each graph, by what both spellings of the graph have in common."""
        files: dict[str, NonTensorFile] = {}
        for file in self.files.of_step(None).values():
            if file.nbytes <= _MAX_NBYTES and (match := _FILE.fullmatch(file.name)):
                twin = f"{file.source.rpartition('/')[0]}/{match['graph']}"
                if match["kind"] == "proto" or twin not in files:
                    files[twin] = file
        return files
