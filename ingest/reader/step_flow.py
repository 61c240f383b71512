"""From which tensor to which content passed in one step of one rank: by equal content, and by the graph.

Content is a fact, and a graph a plan: MindSpore numbers some operators differently in a graph and in names
of files. So where both are known and differ, content decides.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.reader.context import context_of
from ingest.reader.context.rank_context import DumpedSource
from ingest.reader.operator_kinds import (
    CallKey,
    Content,
    contents_of,
    is_collective,
    is_container,
    is_in_order,
    is_input,
    is_optimizer,
    is_output,
    is_parameter,
    keys_of,
    tensor_rows,
    told_hash,
    writes_in_place,
)
from workers.model import grouped
from workers.store.model import RowKind

if TYPE_CHECKING:
    from ingest.reader.step import Step


#: What a graph feeds into the input of a row; None if that is not known.
GraphSource: TypeAlias = Callable[[int], DumpedSource | None]

BY_CONTENT, BY_GRAPH, BY_BOTH = "content", "graph", "content and graph"


class Passing(NamedTuple):
    """The passing of content from one tensor to another."""

    source: int
    target: int
    by: str
    """What shows it: `content`, `graph`, or `content and graph`."""
    is_certain: bool
    """Whether it cannot be by chance: tensors that are constant all over often have equal content."""


class FlowOperand(msgspec.Struct, frozen=True):
    """An input or output of a call."""

    row: int
    shape: tuple[int, ...]
    content: Content
    io: str
    slot: int


class FlowCall(msgspec.Struct, eq=False):
    """One call of an operator, with all its dumped tensors."""

    key: CallKey
    inputs: list[FlowOperand] = []
    outputs: list[FlowOperand] = []

    @property
    def op_type(self) -> str:
        """The type of the operator."""
        return self.key.op_type

    @property
    def positional(self) -> list[FlowOperand]:
        """The inputs without a name of their own, such as `kwargs.weight` has, in order."""
        given = (each for each in self.inputs if "." not in each.io)
        return sorted(given, key=lambda each: (not each.io.startswith("input"), each.slot))


_Writers: TypeAlias = dict[Content, list[tuple[FlowCall, FlowOperand]]]


def flow_of(step: Step) -> StepFlow:
    """Return the flow of a step; always the same object for the same step object.

    Takes time and memory in proportion to the number of its tensors: about 1 KB for each.

    Raises:
        DamagedStore: the index of the step is missing or damaged.
    """
    if step not in _FLOWS:
        _FLOWS[step] = StepFlow(step, _graph_source_of(step))
    return _FLOWS[step]


def _graph_source_of(step: Step) -> GraphSource | None:
    if step.catalog is None:  # in a process to which the step was sent
        return None
    context = context_of(step.catalog, step.key.rank)
    return lambda row: context.graph_source(step.tensor_of(row))


_FLOWS: WeakKeyDictionary[Step, StepFlow] = WeakKeyDictionary()


class StepFlow:
    """The calls of one step of one rank, and what passed between their tensors."""

    def __init__(self, step: Step, graph_source: GraphSource | None = None) -> None:
        """Link all tensors of a step. The step itself is not kept.

        Args:
            step: the step.
            graph_source: what the graph feeds into an input; without it, only content counts.
        """
        tables = step.tables
        rows = tensor_rows(tables)
        self.calls: dict[CallKey, FlowCall] = {}
        """In order of their first tensors."""
        self.call_of: dict[int, FlowCall] = {}
        """By row."""
        self.operands: dict[int, FlowOperand] = {}
        """By row."""
        self.own_writes: set[int] = set()
        """Inputs that their call has overwritten: they were dumped after an update in place."""
        self._ordered = is_in_order(tables, rows)
        self._constant = _constant_rows(step)
        self._passings: dict[int, Passing] = {}
        """By the row that was read."""
        self._add_calls(step, rows)
        self._parameters = self._outputs(are_parameters=True)
        self._writers = self._outputs(are_parameters=False)
        self._link()
        if graph_source is not None:
            self._add_graph(graph_source)

    def producer(self, row: int) -> Passing | None:
        """Return from which tensor the content of a row came; None for what its own call wrote."""
        return self._passings.get(row)

    def consumers(self, row: int) -> list[Passing]:
        """Return to which tensors the content of a row passed, in order of execution."""
        return self._by_source.get(row, [])

    def consumers_by_content(self, row: int) -> list[Passing]:
        """Return to which inputs the very bytes of a row passed."""
        return [passing for passing in self.consumers(row) if passing.by != BY_GRAPH]

    def passings(self) -> Iterator[Passing]:
        """Yield everything that passed, by the row that was read."""
        yield from sorted(self._passings.values(), key=lambda passing: passing.target)

    @cached_property
    def misread(self) -> dict[int, int]:
        """By the rows of inputs whose bytes are not those that the graph feeds into them: the outputs meant.

        Parameters, inputs of collectives, and what operators write in place do not count: they are dumped
        after they were overwritten.
        """
        found: dict[int, int] = {}
        for passing in self._passings.values():
            writer, reader = self.call_of[passing.source], self.call_of[passing.target]
            operand = self.operands[passing.target]
            if (
                passing.by == BY_GRAPH
                and not (is_parameter(writer.op_type) or is_collective(reader.op_type))
                and (is_collective(writer.op_type) or not writes_in_place(writer.op_type))
                and all(written.content != operand.content for written in reader.outputs)
                and (output := self._written_for(self.operands[passing.source], operand)) is not None
            ):
                found[operand.row] = output.row
        return found

    def _written_for(self, output: FlowOperand, operand: FlowOperand) -> FlowOperand | None:
        """Return the output that the graph means by one that it feeds into an input; None if not certain.

        MindSpore may number operators of one type differently in the graph and in the names of files. If
        another operator of the type of the reader has the bytes of the output, the graph means that one. Then
        the only output like it that nobody read is the right one.
        """
        if (output.shape, output.content[0]) != (operand.shape, operand.content[0]):
            return None
        reader = self.call_of[operand.row]
        readers = (passing.target for passing in self.consumers_by_content(output.row))
        alike = [row for row in readers if self.call_of[row].op_type == reader.op_type]
        if all(self.call_of[row] is reader or self.operands[row].slot != operand.slot for row in alike):
            return output
        unread = self._unread_like(output)
        return unread[0] if len(unread) == 1 else None

    def _unread_like(self, output: FlowOperand) -> list[FlowOperand]:
        return [
            other
            for call in self.calls.values()
            if call.op_type == self.call_of[output.row].op_type
            for other in call.outputs
            if (other.slot, other.shape) == (output.slot, output.shape)
            and not self.consumers_by_content(other.row)
        ]

    @cached_property
    def _by_source(self) -> dict[int, list[Passing]]:
        return grouped((passing.source, passing) for passing in self.passings())

    def _add_calls(self, step: Step, rows: npt.NDArray[np.int64]) -> None:
        tables = step.tables
        shapes = zip(tables.shape[rows].tolist(), tables.number("ndim")[rows].tolist(), strict=True)
        columns = (
            rows.tolist(),
            keys_of(tables, rows),
            [tuple(lengths[:ndim]) for lengths, ndim in shapes],
            contents_of(step, rows),
            tables.label("io")[rows].tolist(),
            tables.number("slot")[rows].tolist(),
        )
        for row, key, shape, content, io, slot in zip(*columns, strict=True):
            call = self.calls.setdefault(key, FlowCall(key))
            operand = FlowOperand(row, shape, content, str(io), slot)
            self.call_of[row], self.operands[row] = call, operand
            if is_output(operand.io):
                call.outputs.append(operand)
            elif is_input(operand.io):
                call.inputs.append(operand)

    def _outputs(self, *, are_parameters: bool) -> _Writers:
        writers: _Writers = defaultdict(list)
        for call in self.calls.values():
            if is_parameter(call.op_type) == are_parameters:
                for output in call.outputs:
                    writers[output.content].append((call, output))
        for written in writers.values():
            written.sort(key=row_of)
        return writers

    def _link(self) -> None:
        for call in self.calls.values():
            for operand in call.inputs:
                self._link_input(call, operand)
        for call in self.calls.values():
            if is_container(call.op_type):
                self._link_container(call)
            elif is_parameter(call.op_type):
                for value in call.outputs:
                    self._pass(latest_writer(call, value, self._writers[value.content], ordered=False), value)

    def _link_input(self, call: FlowCall, operand: FlowOperand) -> None:
        writers = self._writers[operand.content]
        written = latest_writer(call, operand, writers, ordered=self._ordered)
        if written is None and is_own_write(call, operand):
            self.own_writes.add(operand.row)
            insort(writers, (call, operand), key=row_of)
            return
        # Parameters are dumped with their final values: one that was not updated is what was read.
        parameters = self._parameters[operand.content]
        self._pass(written or latest_writer(call, operand, parameters, ordered=False), operand)

    def _link_container(self, module: FlowCall) -> None:
        """Link a module to the call inside it that wrote its output: it is dumped around that call."""
        for output in module.outputs:
            for writer, written in self._writers[output.content]:
                is_inside = written.row < output.row or self._may_be_inside(writer, output)
                if writer is not module and is_inside:
                    self._pass((writer, written), output)
                    break

    def _may_be_inside(self, later: FlowCall, output: FlowOperand) -> bool:
        """Return whether a call that was dumped after a module may be inside it: msProbe dumps either first.

        What read the output is not inside. Of tensors with equal elements, only a call with inputs can tell.
        """
        if is_container(later.op_type) or (self._constant[output.row] and not later.inputs):
            return False
        return all(operand.content != output.content for operand in later.inputs)

    def _pass(self, written: tuple[FlowCall, FlowOperand] | None, operand: FlowOperand) -> None:
        if written is not None:
            is_certain = not self._constant[operand.row]
            self._passings[operand.row] = Passing(written[1].row, operand.row, BY_CONTENT, is_certain)

    def _add_graph(self, graph_source: GraphSource) -> None:
        by_name = {(key.graph, key.op_name, key.occurrence): call for key, call in self.calls.items()}
        parameters = {key.op_name: call for key, call in self.calls.items() if is_parameter(key.op_type)}

        def writer_of(source: DumpedSource, reader: CallKey) -> FlowCall | None:
            if source.op_type:
                return parameters.get(source.op_name)
            return by_name.get((reader.graph, source.op_name, reader.occurrence))

        for call in list(self.calls.values()):
            for operand in call.inputs:
                source = graph_source(operand.row)
                if source is None:
                    continue
                writer = writer_of(source, call.key)
                for output in writer.outputs if writer is not None else ():
                    if output.slot == source.slot:
                        self._add_graph_edge(output, operand)

    def _add_graph_edge(self, output: FlowOperand, operand: FlowOperand) -> None:
        by_content = self._passings.get(operand.row)
        if output.content == operand.content:
            self._passings[operand.row] = Passing(output.row, operand.row, BY_BOTH, is_certain=True)
        elif by_content is None:
            self._passings[operand.row] = Passing(output.row, operand.row, BY_GRAPH, is_certain=True)
        elif not by_content.is_certain:
            # Operators of one type may have each other's numbers in the graph.
            op_type, reader = self.call_of[output.row].op_type, self.call_of[operand.row]
            alike = [pair for pair in self._writers[operand.content] if pair[0].op_type == op_type]
            written = latest_writer(reader, operand, alike, ordered=self._ordered)
            self._passings[operand.row] = (
                Passing(output.row, operand.row, BY_GRAPH, is_certain=True)
                if written is None
                else Passing(written[1].row, operand.row, BY_CONTENT, is_certain=True)
            )


def is_own_write(call: FlowCall, operand: FlowOperand) -> bool:
    """Return whether an input that no other call wrote was dumped after its call had overwritten it."""
    if is_optimizer(call.op_type):
        return True
    is_written = any(output.content == operand.content for output in call.outputs)
    return is_written and writes_in_place(call.op_type)


def _constant_rows(step: Step) -> npt.NDArray[np.bool_]:
    """Return a mask of the tensors with equal elements, or no finite ones, (row,)."""
    tables = step.tables
    low, high = tables.statistic("min"), tables.statistic("max")
    constant = np.asarray((low == high) | np.isnan(low))
    of_logs = np.isnan(low) & (tables.label("kind") == RowKind.STATISTICS.value)
    for row in np.flatnonzero(of_logs & (tables.label("record") != "")).tolist():
        constant[row] = not told_hash(tables, row)
    return constant


class Caller(Protocol):
    """A call of an operator."""

    @property
    def op_type(self) -> str:
        """The type of the operator."""


class IndexedOperand(Protocol):
    """An input or output of a call."""

    @property
    def row(self) -> int:
        """Its row in the index of its step: rows are in the order of execution."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""


_Call = TypeVar("_Call", bound=Caller)
_Operand = TypeVar("_Operand", bound=IndexedOperand)

#: The latest calls that may have written a tensor, of which the best one is chosen.
_CANDIDATES = 64


def latest_writer(
    reader: _Call, operand: _Operand, writers: Sequence[tuple[_Call, _Operand]], *, ordered: bool
) -> tuple[_Call, _Operand] | None:
    """Return the latest call before an operand that wrote its content, preferably with the same shape.

    Args:
        reader: the call that read the operand; it is never the answer.
        operand: what it read.
        writers: the calls that wrote this content, with the output, by row.
        ordered: whether the rows are in the order of execution. If not, later ones count, too.
    """
    end = bisect_left(writers, operand.row, key=row_of) if ordered else len(writers)
    # Tensors that are NaN all over have equal content. Comparing all pairs of them would take too long.
    near = writers[max(end - _CANDIDATES, 0) : end]
    possible = [written for written in near if written[0] is not reader]

    def preference(candidate: tuple[_Call, _Operand]) -> tuple[bool, bool, int]:
        writer, output = candidate
        return not is_container(writer.op_type), output.shape == operand.shape, output.row

    return max(possible, key=preference, default=None)


def row_of(written: tuple[_Call, _Operand]) -> int:
    """Return the row of an output of a call."""
    return written[1].row
