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
      }
    }

`ge_proto_*_Build.txt` is the graph that runs: its operators have the names of the dump. (CANN, environment
variable `DUMP_GE_GRAPH`; TorchAir, `dump_layer`.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ingest.reader.context.kept_files import KeptFiles
from ingest.reader.context.match import flatten
from ingest.reader.indexed_tensor import IndexedTensor
from workers.model import MIB

_FILE = re.compile(r"ge_(?:proto|onnx)_.*_Build\.(?:txt|pbtxt)")
_TEXT = re.compile(r'(name|type|input|key|s)\s*:\s*"((?:[^"\\]|\\.)*)"')
_ATTR = ["graph", "op", "attr"]
_OP = _ATTR[:2]
_ORIGINAL = "_datadump_original_op_names"
_MAX_NBYTES = 256 * MIB
_MAX_LINE = 1_000_000


class GeEdge(NamedTuple):
    """What feeds an input."""

    op_name: str
    """As the graph spells it."""
    slot: int
    """The slot of its output."""


@dataclass(slots=True)
class GeOp:
    """One operator of a graph."""

    name: str = ""
    op_type: str = ""
    inputs: list[GeEdge | None] = field(default_factory=list)
    """By slot; None for an input that is not connected. Control edges are left out."""
    originals: list[str] = field(default_factory=list)
    """The operators of the model that were fused into it."""


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
    blocks: list[str] = field(default_factory=list)
    key: str = ""
    """That of the attribute."""

    def take(self, line: str) -> None:
        if line.endswith("{"):
            self.blocks.append(line[:-1].rstrip(": "))
            if self.blocks == _OP:
                self.op = GeOp()
        elif line == "}" and self.blocks:
            if self.blocks == _OP and self.op.name:
                self.graph.ops[flatten(self.op.name)] = self.op
            self.blocks.pop()
        elif match := _TEXT.match(line):
            self._take_text(match[1], match[2])

    def _take_text(self, name: str, text: str) -> None:
        if self.blocks == _OP[:1] and name == "name":
            self.graph.name = text
        elif self.blocks == _OP:
            self._take_of_op(name, text)
        elif self.blocks == _ATTR and name == "key":
            self.key = text
        elif self.blocks[: len(_ATTR)] == _ATTR and name == "s" and self.key == _ORIGINAL:
            self.op.originals.append(text)

    def _take_of_op(self, name: str, text: str) -> None:
        if name == "name":
            self.op.name = text
        elif name == "type":
            self.op.op_type = text
        elif name == "input":
            source, _, slot = text.rpartition(":")
            if slot != "-1":
                self.op.inputs.append(GeEdge(source, int(slot)) if source and slot.isdecimal() else None)


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

    files: KeptFiles
    _graphs: list[GeGraph] | None = None

    def source(self, tensor: IndexedTensor) -> GeEdge | None:
        """Return what feeds an input, by the names of files; None if that is not known."""
        op = self._op(tensor)
        if op is None or not 0 <= tensor.slot < len(op.inputs):
            return None
        edge = op.inputs[tensor.slot]
        return None if edge is None else GeEdge(flatten(edge.op_name), edge.slot)

    def originals(self, tensor: IndexedTensor) -> tuple[str, ...]:
        """Return the operators of the model that were fused into that of a tensor; empty if not known."""
        op = self._op(tensor)
        return () if op is None else tuple(op.originals)

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
            files = [file for file in kept if _FILE.fullmatch(file.name) and file.nbytes <= _MAX_NBYTES]
            self._graphs = [self.files.parse(file, parse_ge_graph) or GeGraph() for file in files]
        return self._graphs
