"""The context of the tensors of one rank: what the other files of the dump have about their operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ingest.reader.context.execution_order import parse_history, parse_order
from ingest.reader.context.frames import SourceLine, best_frame, told_frame
from ingest.reader.context.ge_graph import GeGraphs, ModelOutput
from ingest.reader.context.graph_files import GraphFiles
from ingest.reader.context.ir import IrOp
from ingest.reader.context.ir_nodes import IrSource
from ingest.reader.context.json_files import (
    Stacks,
    call_texts,
    find_key,
    find_stack,
    parse_construct,
    parse_kernel_args,
    parse_stacks,
)
from ingest.reader.context.match import (
    AMBIGUOUS,
    BY_TYPE,
    EXACT,
    DumpedOp,
    GraphOp,
    OperatorMatch,
    flatten,
    match_ops,
    tensor_rows,
)
from ingest.reader.context.non_tensor_files import NonTensorFile, NonTensorFiles
from ingest.reader.context.signature import TensorType
from ingest.reader.context.training_graph import (
    TrainingGraph,
    choose_training_graph,
    parse_built_graph,
    parse_dumped_models,
)
from ingest.reader.indexed_step import StepSource
from ingest.reader.indexed_tensor import IndexedTensor
from workers.model import MIB

_ORDER = re.compile(r"ms_execution_order_graph_(\d+)\.csv")
_HISTORY = re.compile(r"ms_global_execution_order_graph_(\d+)\.csv")
_BUILT_GRAPH = re.compile(r"ge_proto_.*_Build\.txt")
_CONFIG = re.compile(r".*\.json")
_MAX_CONFIG_NBYTES = MIB
_MAX_BUILT_NBYTES = 256 * MIB
#: The operator type under which MindSpore dumps weights and inputs of the network.
_PARAMETER = "Parameter"


class DumpedSource(NamedTuple):
    """What the graph feeds into an input, by the names of the dump."""

    op_type: str
    """`Parameter`, or "" for an operator."""
    op_name: str
    slot: int
    """The slot of its output."""


def context_of(store: StepSource, rank: int) -> Context:
    """Return the context of one rank; always the same object for the same store object."""
    contexts = _CONTEXTS.setdefault(store, {})
    if rank not in contexts:
        contexts[rank] = Context(store, rank)
    return contexts[rank]


class Context:
    """What the dump of one rank has about its operators besides their tensors.

    Each file is parsed when it is first needed, and kept. A file that is damaged, or not what its name
    promises, is treated as missing and reported in `problems`. Errors of the store itself are raised.
    """

    def __init__(self, store: StepSource, rank: int) -> None:
        self.rank = rank
        self._store = store
        self._files = NonTensorFiles(store, rank)
        self._ge_graphs = GeGraphs(self._files)
        self._graphs = GraphFiles(self._files)
        self._orders: dict[str, list[str]] = {}
        self._positions: dict[str, dict[str, int]] = {}
        self._matches: dict[tuple[int | None, str, str], dict[str, OperatorMatch]] = {}
        self._dumped_names: dict[tuple[int | None, str, str], dict[str, str]] = {}
        """By step, graph and directory: the names of operators in the dump by those in the graph."""
        self._stacks: dict[str, Stacks] = {}
        self._parents: dict[str, dict[str, str | None]] = {}

    def __repr__(self) -> str:
        return f"<Context of rank {self.rank} of {self._store.url}>"

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files that were read so far."""
        return list(dict.fromkeys(self._files.problems))

    def source_line(self, tensor: IndexedTensor) -> SourceLine | None:
        """Return the line of the program that made a tensor's operator, preferably in the user's own code.

        None if the dump does not have it, as for parameters, or if it is ambiguous; see `match`.
        """
        return _line_of_record(tensor) or self._line_of_call(tensor) or self._line_of_op(tensor)

    def match(self, tensor: IndexedTensor) -> OperatorMatch | None:
        """Return the operator of the graph that a tensor belongs to; None if the graph has none like it."""
        if tensor.op_type == _PARAMETER:
            return None
        for graph in (tensor.graph, ""):
            matches = self._matches_of(tensor.step, graph, tensor.source)
            if tensor.op_name in matches:
                return matches[tensor.op_name]
        return None

    def execution_order(self, graph: str) -> list[str]:
        """Return the full names of the operators that a graph runs, in order; empty if that is not known.

        The order is a plan: operators that do not wait for each other may run in another order.
        """
        if graph not in self._orders:
            data = self._read_of_graph(_ORDER, graph)
            self._orders[graph] = parse_order(data) if data is not None else []
        return list(self._orders[graph])

    def history(self, graph: str) -> list[int]:
        """Return the iterations in which a root graph ran, as the dump lists them; see `parse_history`."""
        data = self._read_of_graph(_HISTORY, graph)
        return parse_history(data) if data is not None else []

    def _read_of_graph(self, name: re.Pattern[str], graph: str) -> bytes | None:
        """Return the content of the run file of a graph whose name matches; None if there is none."""
        files = [file for file in self._files.of_run(name) if _graph_number(name, file) == graph]
        return self._files.read(files[0]) if files else None

    def position(self, tensor: IndexedTensor) -> int | None:
        """Return the position of a tensor's operator in the execution order of its graph, from 0.

        None if the operator, or its position, is not known.
        """
        match = self.match(tensor)
        if match is None or match.name is None:
            return None
        if tensor.graph not in self._positions:
            order = self.execution_order(tensor.graph)
            self._positions[tensor.graph] = {name: i for i, name in reversed(list(enumerate(order)))}
        return self._positions[tensor.graph].get(match.name)

    def graph_source(self, tensor: IndexedTensor) -> DumpedSource | None:
        """Return the source of an input by the graph, in the names of the dump; None if it is not known.

        Known are the edges of MindSpore's graphs (`.ir`, `.pb`), between operators that are matched without
        doubt, and of the graphs of GE, whose operators have the names of the dump.
        """
        if tensor.io != "input":
            return None
        if (edge := self._ge_graphs.source(tensor)) is not None:
            return DumpedSource("", edge.op_name, edge.slot)
        producer = tensor.told.get("produced_by")
        if isinstance(producer, str):
            return DumpedSource("", producer, 0)
        match = self.match(tensor)
        if match is None or match.name is None:
            return None
        for file in self._graphs.of(tensor.graph, tensor.source):
            op = self._graphs.parsed(file).ops.get(match.name)
            if op is not None and tensor.slot < len(op.inputs):
                source = op.inputs[tensor.slot]
                return None if source is None else self._dumped_source(tensor, source)
        return None

    def _dumped_source(self, tensor: IndexedTensor, source: IrSource) -> DumpedSource | None:
        if source.is_parameter:
            return DumpedSource(_PARAMETER, flatten(source.name), 0)
        key = (tensor.step, tensor.graph, tensor.source.partition("/")[0])
        if key not in self._dumped_names:
            matches = self._matches_of(tensor.step, tensor.graph, tensor.source)
            self._dumped_names[key] = {match.name: name for name, match in matches.items() if match.name}
        name = self._dumped_names[key].get(source.name)
        return None if name is None else DumpedSource("", name, source.slot)

    def original_names(self, tensor: IndexedTensor) -> tuple[str, ...]:
        """Return the operators of the model that were fused into that of a tensor; see `GeGraphs`.

        Without a graph, DumpData may have the last of them.
        """
        told = tensor.told.get("original_op")
        last = (str(told.get("name")),) if isinstance(told, dict) else ()
        last = () if last == (tensor.full_name or tensor.op_name,) else last
        return self._ge_graphs.originals(tensor) or last

    def model_output(self, tensor: IndexedTensor) -> ModelOutput | None:
        """Return the output of the model that an output is in GE's graph; None if it is not known."""
        return self._ge_graphs.model_output(tensor)

    def kernel_args(self, tensor: IndexedTensor) -> dict[str, str] | None:
        """Return the arguments of a tensor's operator (`save_kernel_args`); None if the dump has none."""
        directory = tensor.source.rpartition("/")[0]
        path = f"{directory}/{tensor.op_type}.{tensor.op_name}.json"
        file = self._files.of_step(tensor.step).get(path)
        data = self._files.read(file, limit=_MAX_CONFIG_NBYTES) if file else None
        if file is None or data is None:
            return None
        args, problems = parse_kernel_args(data)
        self._files.add_problems(file, problems)
        return args or None

    def parent(self, tensor: IndexedTensor) -> str | None:
        """Return the module in which msProbe saw the call of a tensor; None for an outermost call."""
        parents = self._parents_of(tensor)
        key = find_key(call_texts(tensor), parents)
        return parents[key] if key is not None else None

    def enclosing(self, tensor: IndexedTensor) -> tuple[str, ...]:
        """Return the modules around the call of a tensor that msProbe saw, from innermost to outermost."""
        parents = self._parents_of(tensor)
        around: dict[str, None] = {}
        outer = self.parent(tensor)
        while outer is not None and outer not in around:
            around[outer] = None
            outer = parents.get(outer)
        return tuple(around)

    def training_graph(self, step: int | None) -> TrainingGraph:
        """Return the training graph of a step; `choose_training_graph` has the rules.

        Raises:
            UsageError: the step is not in the store.
        """
        tables = self._store.step(self.rank, step).tables
        nets, counts = np.unique(tables.label("net")[tensor_rows(tables)].astype(str), return_counts=True)
        candidates = {str(net): int(count) for net, count in zip(nets, counts, strict=True) if net}
        if len(candidates) < 2:
            return choose_training_graph(candidates)
        files = [*self._files.of_step(step).values(), *self._files.of_step(None).values()]
        built = [parse_built_graph(data) for data in self._read_all(files, _BUILT_GRAPH, _MAX_BUILT_NBYTES)]
        asked = [
            name
            for data in self._read_all(files, _CONFIG, _MAX_CONFIG_NBYTES)
            for name in parse_dumped_models(data)
        ]
        return choose_training_graph(candidates, [graph for graph in built if graph is not None], asked)

    def _read_all(self, files: list[NonTensorFile], name: re.Pattern[str], limit: int) -> Iterator[bytes]:
        for file in files:
            if name.fullmatch(file.name) and file.nbytes <= limit:
                data = self._files.read(file)
                if data is not None:
                    yield data

    def _line_of_op(self, tensor: IndexedTensor) -> SourceLine | None:
        """Return the line of an operator of a graph, from a file of MindSpore.

        An ambiguous operator has a line if all of its candidates have the same line.
        """
        match = self.match(tensor)
        if match is None:
            return None
        is_ambiguous = match.how == AMBIGUOUS
        matched = BY_TYPE if is_ambiguous else match.how
        lines = [self._line_of_name(tensor, name, matched) for name in match.names]
        if is_ambiguous and not match.is_whole:
            return None
        places = {(line.file, line.line) if line else None for line in lines}
        return lines[0] if len(places) == 1 else None

    def _line_of_name(self, tensor: IndexedTensor, name: str, matched: str) -> SourceLine | None:
        """Return the line of the operator with this full name; files of the tensor's graph come first."""
        for file in (*self._graphs.of(tensor.graph, tensor.source), *self._graphs.of("", tensor.source)):
            op = self._graphs.parsed(file).ops.get(name)
            if op is not None and (frame := best_frame(op.stack)) is not None:
                return SourceLine(
                    frame.file, frame.line, frame.code, op.stack, matched, op.of, name, file.source
                )
        return None

    def _matches_of(self, step: int | None, graph: str, source: str) -> dict[str, OperatorMatch]:
        """Match the dumped operators of one step and graph; with graph "", those of all graphs."""
        key = (step, graph, source.partition("/")[0])
        if key not in self._matches:
            targets = list(self._graph_ops(graph, source))
            self._matches[key] = match_ops(self._dumped_ops(step, graph), targets) if targets else {}
        return self._matches[key]

    def _graph_ops(self, graph: str, source: str) -> Iterator[GraphOp]:
        """Yield the operators of a graph in order of execution, then those that this order does not have."""
        ops: dict[str, IrOp] = {}
        for file in self._graphs.of(graph, source):
            ops |= self._graphs.parsed(file).ops
        order = dict.fromkeys(self.execution_order(graph) if graph else ())
        for name in order:
            yield GraphOp(name, ops[name].signature if name in ops else None)
        for name, op in ops.items():
            if name not in order:
                yield GraphOp(name, op.signature, runs=not order)

    def _dumped_ops(self, step: int | None, graph: str) -> list[DumpedOp]:
        """Return the operators of one step and graph that were dumped; with graph "", those of all graphs."""
        tables = self._store.step(self.rank, step).tables
        rows = tensor_rows(tables)
        if graph:
            rows = rows[tables.label("graph")[rows] == graph]
        first: dict[str, int] = {}
        types: dict[str, dict[tuple[str, int], TensorType]] = {}
        label, number = tables.label, tables.number
        columns = (
            label("op_type")[rows],
            label("op_name")[rows],
            label("io")[rows],
            number("slot")[rows],
            number("timestamp")[rows],
            label("declared_dtype")[rows],
            label("dtype")[rows],
            tables.shape[rows],
        )
        for op_type, name, io, slot, timestamp, declared, dtype, shape in zip(*columns, strict=True):
            if op_type == _PARAMETER:
                continue
            time = int(timestamp)
            first[name] = min(first.get(name, time), time)
            size = int(np.prod(shape[shape >= 0]))
            types.setdefault(name, {})[io, int(slot)] = (str(declared or dtype).lower(), size)
        return [DumpedOp(name, time, types[name]) for name, time in first.items()]

    def _line_of_call(self, tensor: IndexedTensor) -> SourceLine | None:
        """Return the line of a call that msProbe saw, from its `stack.json`."""
        file = self._files.nearest_above(tensor.step, tensor.source, "stack.json")
        if file is None:
            return None
        if file.source not in self._stacks:
            data = self._files.read(file)
            parsed = parse_stacks(data) if data is not None else Stacks()
            self._files.add_problems(file, parsed.problems)
            self._stacks[file.source] = parsed
        stacks = self._stacks[file.source].stacks
        call = find_stack(call_texts(tensor), stacks)
        if call is None:
            return None
        key, of = call
        frame = best_frame(stacks[key])
        if frame is None:
            return None
        return SourceLine(frame.file, frame.line, frame.code, stacks[key], EXACT, of, key, file.source)

    def _parents_of(self, tensor: IndexedTensor) -> dict[str, str | None]:
        file = self._files.nearest_above(tensor.step, tensor.source, "construct.json")
        if file is None:
            return {}
        if file.source not in self._parents:
            data = self._files.read(file)
            parents, problems = parse_construct(data) if data is not None else ({}, [])
            self._files.add_problems(file, problems)
            self._parents[file.source] = parents
        return self._parents[file.source]


_CONTEXTS: WeakKeyDictionary[StepSource, dict[int, Context]] = WeakKeyDictionary()


def _line_of_record(tensor: IndexedTensor) -> SourceLine | None:
    """Return the line that a log tells next to the statistics of a tensor."""
    if (frame := told_frame(tensor.told)) is None:
        return None
    return SourceLine(
        file=frame.file,
        line=frame.line,
        code=frame.code,
        stack=(frame,),
        matched=EXACT,
        of="op",
        op=tensor.op_name,
        source=tensor.source,
    )


def _graph_number(pattern: re.Pattern[str], file: NonTensorFile) -> str:
    match = pattern.fullmatch(file.name)
    return match[1] if match else ""
