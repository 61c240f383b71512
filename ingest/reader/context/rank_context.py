"""The context of the tensors of one rank: what the other files of the dump have about their operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from ingest.reader.context import ir
from ingest.reader.context.files import (
    MAX_WHOLE_NBYTES,
    Frame,
    NonTensorFile,
    NonTensorFiles,
    Problems,
    SourceLine,
    best_frame,
    call_texts,
    find_key,
    find_stack,
    nearest,
    parse_construct,
    parse_kernel_args,
    parse_stacks,
)
from ingest.reader.context.ge_graph import GeGraphs, ModelOutput
from ingest.reader.context.hlo import HLO_FILE, parse_hlo
from ingest.reader.operator_kinds import tensor_rows
from workers.model import MIB

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog
    from ingest.reader.tensor import Tensor

_ORDER = r"ms_execution_order_graph_{}\.csv"
_HISTORY = r"ms_global_execution_order_graph_{}\.csv"
_TEXT, _PROTO = ".ir", ".pb"
_GRAPH = re.compile(rf".*\.ir|.*trace_code_graph_\d+\.pb|{HLO_FILE}")
_GRAPH_NAME = re.compile(rf".*graph_(\d+)\.(?:ir|pb)|{HLO_FILE}")
_MAX_CONFIG_NBYTES = MIB
#: The operator type under which MindSpore dumps weights and inputs of the network.
_PARAMETER = "Parameter"

_Parsed = TypeVar("_Parsed")


class DumpedSource(NamedTuple):
    """What the graph feeds into an input, by the names of the dump."""

    op_type: str
    """`Parameter`, or "" for an operator."""
    op_name: str
    slot: int


def context_of(store: Catalog, rank: int) -> Context:
    """Return the context of one rank; always the same object for the same store object."""
    contexts = _CONTEXTS.setdefault(store, {})
    if rank not in contexts:
        contexts[rank] = Context(store, rank)
    return contexts[rank]


_CONTEXTS: WeakKeyDictionary[Catalog, dict[int, Context]] = WeakKeyDictionary()


class Context:
    """What the dump of one rank has about its operators besides their tensors.

    Each file is parsed when it is first needed, and kept. A file that is damaged, or not what its name
    promises, is treated as missing and reported in `problems`. Errors of the store itself are raised.
    """

    def __init__(self, store: Catalog, rank: int) -> None:
        self.rank = rank
        self._store = store
        self._files = NonTensorFiles(store, rank)
        self._ge_graphs = GeGraphs(self._files)
        self._parsed: dict[tuple[object, ...], Any] = {}
        """What was computed so far, by its kind and what it is about."""

    def __repr__(self) -> str:
        return f"<Context of rank {self.rank} of {self._store.url}>"

    def _once(self, make: Callable[[], _Parsed], *about: object) -> _Parsed:
        if about not in self._parsed:
            self._parsed[about] = make()
        parsed: _Parsed = self._parsed[about]
        return parsed

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files that were read so far."""
        return list(dict.fromkeys(self._files.problems))

    def source_line(self, tensor: Tensor) -> SourceLine | None:
        """Return the line of the program that made a tensor's operator, preferably in the user's own code.

        None if the dump does not have it, as for parameters, or if it is ambiguous; see `match`.
        """
        match tensor.told.get("location"):  # of a log, next to the statistics
            case {"file": str(file), "line": int(line), **rest}:
                frame = Frame(file, line, str(rest.get("code", "")), str(rest.get("function", "")))
                return _source_line((frame,), ir.EXACT, "op", tensor.op_name, tensor.source)
        return self._line_of_call(tensor) or self._line_of_op(tensor)

    def match(self, tensor: Tensor) -> ir.OperatorMatch | None:
        """Return the operator of the graph that a tensor belongs to; None if the graph has none like it."""
        if tensor.op_type == _PARAMETER:
            return None
        matches = self._matches_of(tensor, tensor.graph).get(tensor.op_name)
        return matches or self._matches_of(tensor, "").get(tensor.op_name)

    def execution_order(self, graph: str) -> list[str]:
        """Return the full names of the operators that a graph runs, in order; empty if that is not known.

        The order is a plan: operators that do not wait for each other may run in another order.
        """
        return self._once(lambda: parse_order(self._read_of_graph(_ORDER, graph)), "order", graph)

    def history(self, graph: str) -> list[int]:
        """Return the iterations in which a root graph ran: `ms_global_execution_order_graph_{id}.csv`.

        The file has one iteration in each line, and does not have a header. Some back ends list only dumped
        iterations. With several ranks, each of them adds a line, so iterations repeat. An iteration in the
        file may be incomplete.
        """
        data = self._read_of_graph(_HISTORY, graph)
        return [int(line) for line in re.findall(rb"^[ \t]*(\d{1,18})\s*$", data, re.MULTILINE)]

    def _read_of_graph(self, name: str, graph: str) -> bytes:
        files = self._files.of_run(re.compile(name.format(r"\d+")))
        own = [file for file in files if re.fullmatch(name.format(re.escape(graph)), file.name)]
        return (self._files.read(own[0]) if own else None) or b""

    def position(self, tensor: Tensor) -> int | None:
        """Return the position of a tensor's operator in the execution order of its graph, from 0.

        None if the operator, or its position, is not known.
        """
        match, order = self.match(tensor), self.execution_order(tensor.graph)
        if match is None or match.name is None:
            return None
        positions = self._once(
            lambda: {name: place for place, name in reversed(list(enumerate(order)))}, "place", tensor.graph
        )
        return positions.get(match.name)

    def graph_source(self, tensor: Tensor) -> DumpedSource | None:
        """Return the source of an input by the graph, in the names of the dump; None if it is not known.

        Known are the edges of MindSpore's graphs (`.ir`, `.pb`), between operators that are matched without
        doubt, and of the graphs of GE, whose operators have the names of the dump.
        """
        if tensor.io != "input":
            return None
        if (edge := self._ge_graphs.source(tensor)) is not None:
            return DumpedSource("", *edge)
        if isinstance(producer := tensor.told.get("produced_by"), str):
            return DumpedSource("", producer, 0)
        match = self.match(tensor)
        if match is None or match.name is None:
            return None
        graphs = (graph for _, graph in self._graphs(tensor.graph, tensor.source))
        ops = (graph.ops[match.name] for graph in graphs if match.name in graph.ops)
        inputs = next((op.inputs for op in ops if tensor.slot < len(op.inputs)), ())
        source = inputs[tensor.slot] if inputs else None
        return None if source is None else self._dumped_source(tensor, source)

    def _dumped_source(self, tensor: Tensor, source: ir.IrSource) -> DumpedSource | None:
        if source.slot < 0:
            return DumpedSource(_PARAMETER, ir.flatten(source.name), 0)
        matches = self._matches_of(tensor, tensor.graph)
        name = self._once(
            lambda: {match.name: name for name, match in matches.items() if match.name},
            *("dumped names", tensor.step, tensor.graph, tensor.source.partition("/")[0]),
        ).get(source.name)
        return None if name is None else DumpedSource("", name, source.slot)

    def original_names(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the operators of the model that were fused into that of a tensor; empty if not known.

        Without a graph of GE, DumpData may have the last of them.
        """
        op, told = self._ge_graphs.op_of(tensor), tensor.told.get("original_op")
        if op is not None and op.originals:
            return tuple(op.originals)
        last = (str(told.get("name")),) if isinstance(told, dict) else ()
        return () if last == (tensor.full_name or tensor.op_name,) else last

    def model_output(self, tensor: Tensor) -> ModelOutput | None:
        """Return the output of the model that an output is in GE's graph; None if it is not known."""
        return self._ge_graphs.model_output(tensor)

    def kernel_args(self, tensor: Tensor) -> dict[str, str] | None:
        """Return the arguments of a tensor's operator (`save_kernel_args`); None if the dump has none."""
        path = f"{tensor.source.rpartition('/')[0]}/{tensor.op_type}.{tensor.op_name}.json"
        file = self._files.of_step(tensor.step).get(path)
        return self._read(file, parse_kernel_args, _MAX_CONFIG_NBYTES) or None if file else None

    def _read(
        self,
        file: NonTensorFile,
        parse: Callable[[bytes], tuple[dict[str, _Parsed], Problems]],
        limit: int = MAX_WHOLE_NBYTES,
    ) -> dict[str, _Parsed]:
        data = self._files.read(file, limit=limit)
        content, problems = ({}, Problems()) if data is None else parse(data)
        self._files.add_problems(file, problems)
        return content

    def parent(self, tensor: Tensor) -> str | None:
        """Return the module in which msProbe saw the call of a tensor; None for an outermost call."""
        parents = self._parents_of(tensor)
        key = find_key(call_texts(tensor), parents)
        return None if key is None else parents[key]

    def enclosing(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the modules around the call of a tensor that msProbe saw, from innermost to outermost."""
        parents, around = self._parents_of(tensor), dict[str, None]()
        outer = self.parent(tensor)
        while outer is not None and outer not in around:
            around[outer] = None
            outer = parents.get(outer)
        return tuple(around)

    def _parents_of(self, tensor: Tensor) -> dict[str, str | None]:
        file = self._files.nearest_above(tensor.step, tensor.source, "construct.json")
        return {} if file is None else self._once(lambda: self._read(file, parse_construct), file.source)

    def _line_of_op(self, tensor: Tensor) -> SourceLine | None:
        """Return the line of an operator of a graph, from a file of MindSpore.

        An ambiguous operator has a line if all of its candidates have the same line.
        """
        match = self.match(tensor)
        if match is None or (match.how == ir.AMBIGUOUS and not match.is_whole):
            return None
        matched = ir.BY_TYPE if match.how == ir.AMBIGUOUS else match.how
        lines = [self._line_of_name(tensor, name, matched) for name in match.names]
        places = {(line.file, line.line) if line else None for line in lines}
        return lines[0] if len(places) == 1 else None

    def _line_of_name(self, tensor: Tensor, name: str, matched: str) -> SourceLine | None:
        for number in (tensor.graph, ""):
            for file, graph in self._graphs(number, tensor.source):
                op = graph.ops.get(name)
                if op and (line := _source_line(op.stack, matched, op.of, name, file.source)):
                    return line
        return None

    def _line_of_call(self, tensor: Tensor) -> SourceLine | None:
        file = self._files.nearest_above(tensor.step, tensor.source, "stack.json")
        if file is None:
            return None
        stacks = self._once(lambda: self._read(file, parse_stacks), file.source)
        call = find_stack(call_texts(tensor), stacks)
        return call and _source_line(stacks[call[0]], ir.EXACT, call[1], call[0], file.source)

    def _matches_of(self, tensor: Tensor, graph: str) -> dict[str, ir.OperatorMatch]:
        """Match the dumped operators of a step and graph by name; with graph "", those of all graphs."""
        step, source = tensor.step, tensor.source

        def make() -> dict[str, ir.OperatorMatch]:
            targets = list(self._graph_ops(graph, source))
            return ir.match_ops(self._dumped_ops(step, graph), targets) if targets else {}

        return self._once(make, "matches", step, graph, source.partition("/")[0])

    def _graph_ops(self, graph: str, source: str) -> Iterator[ir.GraphOp]:
        """Yield the operators of a graph in order of execution, then those that this order does not have."""
        ops: dict[str, ir.IrOp] = {}
        for _, parsed in self._graphs(graph, source):
            ops |= parsed.ops
        order = dict.fromkeys(self.execution_order(graph) if graph else ())
        for name in order:
            yield ir.GraphOp(name, ops[name].signature if name in ops else None)
        for name, op in ops.items():
            if name not in order:
                yield ir.GraphOp(name, op.signature, runs=not order)

    def _dumped_ops(self, step: int | None, graph: str) -> list[ir.DumpedOp]:
        tables = self._store.step(self.rank, step).tables
        rows = tensor_rows(tables)
        if graph:
            rows = rows[tables.label("graph")[rows] == graph]
        first: dict[str, int] = {}
        types: dict[str, dict[tuple[str, int], ir.TensorType]] = {}
        labels = (
            tables.label(name)[rows] for name in ("op_type", "op_name", "io", "declared_dtype", "dtype")
        )
        numbers = (tables.number(name)[rows].tolist() for name in ("slot", "timestamp"))
        for op_type, name, io, declared, dtype, slot, timestamp, shape in zip(
            *labels, *numbers, tables.shape[rows], strict=True
        ):
            if op_type != _PARAMETER:
                first[name] = min(first.get(name, timestamp), timestamp)
                size = int(np.prod(shape[shape >= 0]))
                types.setdefault(name, {})[io, slot] = (str(declared or dtype).lower(), size)
        return [ir.DumpedOp(name, time, types[name]) for name, time in first.items()]

    def _graphs(self, graph: str, source: str) -> Iterator[tuple[NonTensorFile, ir.IrGraph]]:
        """Yield the file of a graph that is nearest to a path, parsed; with graph "", all.

        MindSpore writes each graph twice. The text counts; where it is missing, damaged, or cut before its
        first operator, the `.pb` file of the same name stands for it.
        """
        files = {file.source: file for file in self._files.of_run(_GRAPH)}
        texts = {path.removesuffix(_TEXT) for path in files if path.endswith(_TEXT)}
        chosen = [
            file
            for path, file in files.items()
            if path.endswith(_TEXT) or path.removesuffix(_PROTO) not in texts
        ]
        if graph:
            names = ((file, _GRAPH_NAME.fullmatch(file.name)) for file in chosen)
            file = nearest((file for file, match in names if match and graph in match.groups()), source)
            chosen = [file] if file else []
        for file in chosen:
            parsed = self._once(partial(self._parse_graph, file), "graph", file.source)
            twin = files.get(file.source.removesuffix(_TEXT) + _PROTO)
            if not parsed.ops and twin:
                parsed = self._once(partial(self._parse_graph, twin), "graph", twin.source)
            yield file, parsed

    def _parse_graph(self, file: NonTensorFile) -> ir.IrGraph:
        if file.name.endswith(_PROTO) and file.nbytes > MAX_WHOLE_NBYTES:
            return ir.IrGraph()
        parse = {_TEXT: ir.parse_ir, _PROTO: ir.parse_pb}.get(Path(file.name).suffix, parse_hlo)
        parsed = self._files.parse(file, parse) or ir.IrGraph()
        self._files.add_problems(file, parsed.problems)
        return parsed


def _source_line(stack: tuple[Frame, ...], matched: str, of: str, op: str, source: str) -> SourceLine | None:
    frame = best_frame(stack)
    return (
        None
        if frame is None
        else SourceLine(frame.file, frame.line, frame.code, stack, matched, of, op, source)
    )


def parse_order(data: bytes) -> list[str]:
    """Return the full names in `ms_execution_order_graph_{id}.csv`, in order of execution.

    The file has a header, then one name in each line. Bytes that are not valid UTF-8 are replaced.
    """
    lines = map(str.strip, data.decode("utf-8", "replace").split("\n"))
    return [line for line in lines if line and not line.startswith("NodeExecutionOrder")]
