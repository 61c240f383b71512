"""The calls of one step with a bad tensor (NaN, Inf, or what is searched for), and how it flows on from them.

Tensors of equal content are treated as one tensor: the input of a call was written by the latest earlier call
with an output of the same bits. Collectives of one name are one only on ranks with equal outputs: there
may be several groups of ranks, and compilers number operators separately for each rank.

Clocks of different ranks are never compared. A collective that ends on any rank only after all ranks of its
group have begun it orders the calls before and after it.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.operator_kinds import (
    CallKey,
    Content,
    content_of,
    gives_all_the_same,
    is_collective,
    is_container,
    is_in_order,
    is_input,
    is_optimizer,
    is_output,
    is_parameter,
    is_point_to_point,
    key_of,
    keys_of,
    receives_as_is,
    synchronises,
    tensor_rows,
    writes_in_place,
)
from ingest.reader.step import Step
from ingest.reader.step_flow import latest_writer, row_of
from workers.model import grouped
from workers.store.model import RowKind, tensor_name
from workers.store.tables import Tables

#: Which rows of a step are bad, (row,); see `bad_numbers`.
Mask: TypeAlias = npt.NDArray[np.bool_]
IsBad: TypeAlias = Callable[[Step], Mask]
_Rows: TypeAlias = npt.NDArray[np.int64]

_FLOAT = re.compile(r"(?i)float|half|double|complex|bf16|fp\d")


@dataclass(frozen=True, slots=True)
class CallOperand:
    """A bad input or output of a call."""

    row: int
    io: str
    slot: int
    shape: tuple[int, ...]
    content: Content
    holds: str
    """`NaN`, `+Inf`, `-Inf`, `Inf` for both infinities; "" if none of them is known to be in it."""
    is_plain: bool = False
    """Whether all elements are NaN, or the same infinity: unrelated tensors may then have equal content."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of an operator with at least one bad tensor."""

    rank: int
    step: int
    key: CallKey
    row: int
    """Its place in the order of execution of its rank: the row of its first output."""
    inputs: int
    missing_slots: tuple[int, ...]
    """Inputs that the dump does not have although it has later ones."""
    bad_inputs: tuple[CallOperand, ...]
    bad_outputs: tuple[CallOperand, ...]

    @property
    def op_type(self) -> str:
        """The type of the operator."""
        return self.key.op_type

    @property
    def op_name(self) -> str:
        """The name of the operator."""
        return self.key.op_name

    def name_of(self, operand: CallOperand) -> str:
        """Return the name of one of its tensors, as `Tensor.name`."""
        return tensor_name(self.op_type, self.op_name, operand.io, operand.slot, self.key.occurrence)


#: The types of rows of what is learned.
_LEARNED: Final = ("Gradient", "Parameter")


class CollectiveCall(NamedTuple):
    """A call of a collective, with or without a bad tensor."""

    row: int
    outputs: tuple[Content, ...] = ()
    """Its outputs, if they are the same on all ranks of its group; empty if they were not dumped."""


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """What an answer needs of one step of one rank: the calls with bad tensors, and the collectives."""

    rank: int
    step: int
    calls: tuple[Call, ...]
    collectives: dict[CallKey, CollectiveCall] = field(repr=False, default_factory=dict)
    """All calls of collectives, in order of execution."""
    is_ordered: bool = True
    has_inputs: bool = True
    has_outputs: bool = True
    """Whether any output was dumped, parameters aside."""
    unknown: int = 0
    """The number of floating-point tensors that may or may not hold NaN or Inf."""
    ends_clean: bool = False
    """Whether what was computed last is clean: the last output, parameters, and their gradients, which were
    dumped. What is bad before is memory that nothing read, or not yet."""
    infinite_slopes: tuple[str, ...] = ()
    """If a gradient is bad: the calls that read, or gave, a number at which their derivative is infinite."""


#: By function, where its derivative is infinite: the side, the statistic that tells, and its value.
_INFINITE_SLOPES: Final = {
    "sqrt": (("input", "min", 0.0),),
    "std": (("output", "min", 0.0),),
    "acos": (("input", "min", -1.0), ("input", "max", 1.0)),
    "asin": (("input", "min", -1.0), ("input", "max", 1.0)),
}


def bad_numbers(step: Step, *, nan: bool = True, inf: bool = True) -> Mask:
    """Return a mask of the rows that hold NaN or Inf, or both.

    Some statistics become NaN if any element is, and do not count such elements (msProbe). If a tensor has no
    statistics, and the same table has those of other tensors, the tensor counts as one with NaN or Inf.
    """
    tables = step.tables
    bad = np.zeros(len(tables.labels), bool)
    if nan:
        bad |= tables.statistic("nan_count") > 0
    if inf:
        bad |= (tables.statistic("pos_inf_count") > 0) | (tables.statistic("neg_inf_count") > 0)
    return bad | _lost_statistics(tables)


def _lost_statistics(tables: Tables) -> Mask:
    lost = np.asarray(tables.label("kind") == RowKind.STATISTICS.value)
    if not lost.any():
        return lost
    is_known = ~np.isnan([tables.statistic(name) for name in ("min", "max", "mean")]).all(axis=0)
    sources = tables.label("statistics_from")
    lost &= ~is_known & np.isnan(tables.statistic("nan_count")) & (tables.statistic("count") > 0)
    sources_with_statistics = set(sources[is_known])
    for row in np.flatnonzero(lost):
        dtype = str(tables.label("dtype")[row] or tables.label("declared_dtype")[row])
        lost[row] = sources[row] in sources_with_statistics and _FLOAT.search(dtype) is not None
    return lost


def trace_rank(step: Step, is_bad: IsBad) -> RankTrace:
    """Return the calls with bad tensors of one step of one rank, and drop its index.

    Memory: the index while it is read; then only the calls with bad tensors, and the collectives.

    Raises:
        DamagedStore: the index is missing or damaged.
    """
    tables, bad = step.tables, is_bad(step)
    rows = tensor_rows(tables)
    op_types = tables.label("op_type")[rows].tolist()
    io = tables.label("io")[rows].tolist()
    unknown = rows[np.isnan(tables.statistic("nan_count")[rows]) & ~bad[rows]]
    trace = RankTrace(
        step.key.rank,
        int(step.key.step or 0),
        tuple(sorted(_calls(step, rows, bad), key=lambda call: call.row)),
        _collectives(step, rows),
        is_ordered=is_in_order(tables, rows),
        has_inputs=any(map(is_input, set(io))),
        has_outputs=any(
            is_output(label) and not is_parameter(op_type)
            for label, op_type in set(zip(io, op_types, strict=True))
        ),
        unknown=sum(_FLOAT.search(str(dtype)) is not None for dtype in tables.label("dtype")[unknown]),
    )
    kinds = list(zip(op_types, io, tables.label("op_name")[rows].tolist(), strict=True))
    learned = [n for n, (kind, _, name) in enumerate(kinds) if kind in _LEARNED and ".output" not in name]
    # The loss may be NaN although gradients are finite: that of a logarithm of a negative number is.
    outputs = [n for n, (kind, label, _) in enumerate(kinds) if is_output(label) and kind not in _LEARNED]
    is_in_backward = any(call.op_type == "Gradient" for call in trace.calls)
    slopes = tuple(_infinite_slopes(tables, rows, op_types)) if is_in_backward else ()
    step.forget_tables()
    is_known = trace.is_ordered and any(op_types[n] == "Gradient" for n in learned)
    ends_clean = is_known and not bad[rows[learned + outputs[-1:]]].any()
    return replace(trace, ends_clean=ends_clean, infinite_slopes=slopes)


def _infinite_slopes(tables: Tables, rows: _Rows, op_types: Iterable[str]) -> Iterator[str]:
    """Yield calls of functions with what they read or gave: `Tensor.sqrt (sqrt.0) read 0`."""
    functions = (op_type.rpartition(".")[2].lower() for op_type in op_types)
    for row, function in zip(rows.tolist(), functions, strict=True):
        for io, statistic, value in _INFINITE_SLOPES.get(function, ()):
            if tables.label("io")[row] == io and tables.statistic(statistic)[row] == value:
                key = key_of(tables, row)
                yield f"{key.op_type} ({key.op_name}) {'read' if io == 'input' else 'gave'} {value:g}"


def _collectives(step: Step, rows: _Rows) -> dict[CallKey, CollectiveCall]:
    tables = step.tables
    op_types = tables.label("op_type")[rows].tolist()
    collective_types = set(filter(is_collective, set(op_types)))
    collectives: dict[CallKey, CollectiveCall] = {}
    io = tables.label("io")
    chosen = rows[[op_type in collective_types for op_type in op_types]]
    for row, key in zip(chosen.tolist(), keys_of(tables, chosen), strict=True):
        call = collectives.setdefault(key, CollectiveCall(row))
        if is_output(io[row]) and gives_all_the_same(key.op_type):
            collectives[key] = call._replace(outputs=(*call.outputs, content_of(step, row)))
    return collectives


def _calls(step: Step, rows: _Rows, bad: Mask) -> Iterable[Call]:
    tables = step.tables
    members: dict[CallKey, list[int]] = {key: [] for key in keys_of(tables, rows[bad[rows]])}
    names = {key.op_name for key in members}
    alike = rows[[name in names for name in tables.label("op_name")[rows].tolist()]]
    for row, key in zip(alike.tolist(), keys_of(tables, alike), strict=True):
        if key in members:
            members[key].append(row)
    return (_call(step, key, call_rows, bad) for key, call_rows in members.items())


def rows_of(step: Step, key: CallKey) -> list[int]:
    """Return the rows of all tensors of a call, in order."""
    tables = step.tables
    rows = tensor_rows(tables)
    rows = rows[tables.label("op_name")[rows] == key.op_name]
    return [row for row, of_row in zip(rows.tolist(), keys_of(tables, rows), strict=True) if of_row == key]


def operator_before(step: Step, call: Call) -> str | None:
    """Return type and name of the operator whose tensors were dumped before those of a call."""
    tables = step.tables
    own = set(rows_of(step, call.key))
    earlier = [row for row in tensor_rows(tables).tolist() if row < min(own) and row not in own]
    if not earlier:
        return None
    key = key_of(tables, earlier[-1])
    return f"{key.op_type} ({key.op_name})"


def _call(step: Step, key: CallKey, rows: list[int], bad: Mask) -> Call:
    io, slot = step.tables.label("io"), step.tables.number("slot")
    inputs = [row for row in rows if is_input(io[row])]
    outputs = [row for row in rows if is_output(io[row])]
    slots = {int(slot[row]) for row in inputs if io[row] == "input"}
    return Call(
        rank=step.key.rank,
        step=int(step.key.step or 0),
        key=key,
        row=min(outputs or rows),
        inputs=len(inputs),
        missing_slots=tuple(sorted(set(range(max(slots, default=0))) - slots)),
        bad_inputs=_operands(step, inputs, bad),
        bad_outputs=_operands(step, outputs, bad),
    )


def _operands(step: Step, rows: list[int], bad: Mask) -> tuple[CallOperand, ...]:
    return tuple(_operand(step, row) for row in rows if bad[row])


def _operand(step: Step, row: int) -> CallOperand:
    tables = step.tables
    counted = ("nan_count", "pos_inf_count", "neg_inf_count", "count")
    nan, positive, negative, count = (tables.statistic(name)[row] for name in counted)
    infinity = "Inf" if positive > 0 and negative > 0 else "+Inf" if positive > 0 else "-Inf"
    return CallOperand(
        row,
        sys.intern(str(tables.label("io")[row])),
        int(tables.number("slot")[row]),
        step.shape(row),
        content_of(step, row),
        "NaN" if nan > 0 else infinity if positive > 0 or negative > 0 else "",
        bool(max(nan, positive, negative) == count),
    )


#: A collective in which several ranks meet: its name, and its outputs if they tell groups of ranks apart.
Meeting: TypeAlias = tuple[CallKey, tuple[Content, ...]]

#: Rounds in which levels settle. More are needed only if ranks disagree on the order of collectives.
_ROUNDS = 100


@dataclass(eq=False)
class CollectiveOrder:
    """The order of calls on several ranks in one step."""

    traces: Mapping[int, RankTrace]

    @cached_property
    def are_names_unique(self) -> bool:
        """Whether no collective has outputs which show that its name means another one on another rank."""
        calls = (each for trace in self.traces.values() for each in trace.collectives.items())
        known = {(key, call.outputs) for key, call in calls if call.outputs}
        return len(known) == len({key for key, _ in known})

    def level_of(self, call: Call) -> int:
        """Return the level of the last collective that had begun on its rank when a call ran; 0 for none.

        A call that must have ended before another one began does not have a higher level, and has a lower one
        if they are on different ranks.
        """
        own = self.traces[call.rank].collectives.get(call.key)
        if own is not None and (meeting := self._meeting(call.key, own)) in self._levels:
            return self._levels[meeting]
        rows, meetings = self._by_rank[call.rank]
        begun = bisect_right(rows, call.row)
        return self._levels.get(meetings[begun - 1], 0) if begun else 0

    def rows_after(self, call: Call) -> dict[int, int]:
        """Return by rank the row after which all calls ran later than a call, if collectives show one."""
        rows_of = grouped(
            (meeting, (rank, row))
            for rank, (rows, meetings) in self._by_rank.items()
            for row, meeting in zip(rows, meetings, strict=True)
        )
        after, queue, passed = {call.rank: call.row}, [call.rank], set[Meeting]()
        for rank in queue:
            rows, meetings = self._by_rank[rank]
            for meeting in meetings[bisect_right(rows, after[rank]) :]:
                if meeting in passed:
                    continue
                passed.add(meeting)
                for other, row in rows_of[meeting]:
                    if other not in after or row < after[other]:
                        after[other] = row
                        queue.append(other)
        return after

    @cached_property
    def _by_rank(self) -> dict[int, tuple[list[int], list[Meeting]]]:
        """By rank, the rows and the meetings of its collectives, in order of execution."""
        by_rank = {}
        for rank, trace in self.traces.items():
            calls = trace.collectives.items() if trace.is_ordered else ()
            met = [(call.row, meeting) for key, call in calls if (meeting := self._meeting(key, call))]
            by_rank[rank] = [row for row, _ in met], [meeting for _, meeting in met]
        return by_rank

    def _meeting(self, key: CallKey, call: CollectiveCall) -> Meeting | None:
        is_known = call.outputs or self.are_names_unique
        return (key, call.outputs) if is_known and synchronises(key.op_type) else None

    @cached_property
    def _levels(self) -> dict[Meeting, int]:
        """The number of collectives that must have ended before a meeting, at least, itself included."""
        # Ranks that run the same collectives in the same order need to be looked at once only.
        orders = dict.fromkeys(tuple(meetings) for _, meetings in self._by_rank.values())
        levels: dict[Meeting, int] = {}
        for _ in range(_ROUNDS):
            changes = [_raise_levels(levels, order) for order in orders]
            if not any(changes):
                break
        return levels


def _raise_levels(levels: dict[Meeting, int], order: Sequence[Meeting]) -> bool:
    """Give each meeting of a rank a higher level than the one before it; return whether that changed any."""
    has_changed = False
    lowest = 0
    for meeting in order:
        lowest = max(levels.get(meeting, 0), lowest + 1)
        if levels.get(meeting) != lowest:
            levels[meeting], has_changed = lowest, True
    return has_changed


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The passing of something bad from one call to another, on one rank."""

    source: Call
    target: Call
    operand: CallOperand | None
    """The input of `target` that brought it; None if that is not known."""
    is_assumed: bool = False
    """Whether only the order of execution suggests it: the tensor that would show it was not dumped."""


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """The passing of something bad through a collective, from several ranks to several ranks.

    Edges for each pair of ranks would be thousands for each collective.
    """

    key: CallKey
    sources: tuple[Call, ...]
    """On the ranks that put in something bad."""
    targets: tuple[Call, ...]
    is_assumed: bool = False
    """Whether only the order of execution suggests it, because the input was not dumped, or overwritten."""


@dataclass(eq=False)
class Flow:
    """The calls of one step that have a bad tensor, and what passed between them."""

    step: int
    traces: Mapping[int, RankTrace]
    after: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    before: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    leaving: dict[Call, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    """By call, the collectives into which it put something bad."""
    arriving: dict[Call, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    """By call of a collective, the crossings by which its output may have come from another rank."""
    own_writes: dict[Call, list[CallOperand]] = field(default_factory=lambda: defaultdict(list))
    """Bad inputs that a call has written itself: they were dumped after an update in place."""
    unexplained: dict[Call, list[CallOperand]] = field(default_factory=lambda: defaultdict(list))
    twins: set[Call] = field(default_factory=set)
    """Calls of collectives that may or may not be the same as one of another name on another rank."""

    @cached_property
    def order(self) -> CollectiveOrder:
        """How collectives order the ranks."""
        return CollectiveOrder(self.traces)

    @property
    def calls(self) -> Iterator[Call]:
        """All calls with a bad tensor, by rank and in order of execution."""
        for trace in self.traces.values():
            yield from trace.calls

    def add_edge(self, edge: Edge) -> None:
        """Record that something bad passed from a call to another on its rank."""
        self.after[edge.source].append(edge)
        self.before[edge.target].append(edge)

    def add_crossing(self, crossing: Crossing) -> None:
        """Record that something bad passed from rank to rank."""
        for call in crossing.sources:
            self.leaving[call].append(crossing)
        for call in crossing.targets:
            self.arriving[call].append(crossing)

    def crossings_of(self, calls: Iterable[Call]) -> list[Crossing]:
        """Return the collectives into which these calls put something bad, each once."""
        return list(dict.fromkeys(crossing for call in calls for crossing in self.leaving.get(call, ())))

    def has_source(self, call: Call) -> bool:
        """Return whether something bad came to a call from another one."""
        return bool(self.before.get(call) or self.arriving.get(call))

    def is_assumed(self, call: Call) -> bool:
        """Return whether only the order of execution suggests that something bad came to a call."""
        links = [*self.before.get(call, ()), *self.arriving.get(call, ())]
        return bool(links) and all(link.is_assumed for link in links)

    def has_bad_input(self, call: Call) -> bool:
        """Return whether a call read something bad that it had not written itself."""
        own = self.own_writes.get(call, ())
        return any(operand not in own for operand in call.bad_inputs)

    def downstream(self, calls: Iterable[Call]) -> list[Call]:
        """Return these calls and those to which something bad came from them, nearest first."""
        return list(_reached(calls, self.after, self.leaving, attrgetter("target"), attrgetter("targets")))

    def upstream(self, calls: Iterable[Call]) -> set[Call]:
        """Return these calls and those from which something bad came to them."""
        return set(_reached(calls, self.before, self.arriving, attrgetter("source"), attrgetter("sources")))

    def unread_outputs(self, call: Call) -> list[CallOperand]:
        """Return bad outputs of a call that no other call read; of a parameter, all of its bad outputs."""
        if is_parameter(call.op_type):
            return list(call.bad_outputs)
        read = {edge.operand.content for edge in self.after.get(call, ()) if edge.operand is not None}
        return [output for output in call.bad_outputs if output.content not in read]


def _reached(
    calls: Iterable[Call],
    edges: Mapping[Call, Sequence[Edge]],
    crossings: Mapping[Call, Sequence[Crossing]],
    end_of: Callable[[Edge], Call],
    ends_of: Callable[[Crossing], Iterable[Call]],
) -> dict[Call, None]:
    """Return these calls and those to which edges and crossings lead from them, nearest first."""
    reached = dict.fromkeys(calls)
    queue, passed = list(reached), set[Crossing]()
    for call in queue:
        following = sorted(map(end_of, edges.get(call, ())), key=attrgetter("row"))
        for crossing in crossings.get(call, ()):
            if crossing not in passed:
                passed.add(crossing)
                following += ends_of(crossing)
        new = [target for target in dict.fromkeys(following) if target not in reached]
        queue += new
        reached |= dict.fromkeys(new)
    return reached


#: By content, the calls of one rank that wrote it, with the output; in order of execution.
Writers: TypeAlias = dict[Content, list[tuple[Call, CallOperand]]]


def link_calls(step: int, traces: Mapping[int, RankTrace]) -> Flow:
    """Link the calls of one step by the bad tensors that passed between them.

    Takes time and memory in proportion to the number of calls with bad tensors.

    Args:
        step: the step.
        traces: the traces of the ranks to look at, by rank.
    """
    flow = Flow(step, traces)
    for trace in traces.values():
        _link_rank(flow, trace)
    _link_collectives(flow)
    for trace in traces.values():
        _assume_edges(flow, trace)
    return flow


def _link_rank(flow: Flow, trace: RankTrace) -> None:
    calls = [call for call in trace.calls if not is_parameter(call.op_type)]
    # Parameters are dumped with their final values. Without an order, these may be what was read.
    writers = _writers(calls if trace.is_ordered else trace.calls)
    for call in calls:
        for operand in call.bad_inputs:
            _link_input(flow, trace, call, operand, writers)
    for call in calls:
        if is_container(call.op_type):
            _link_container(flow, call, writers)
    for call in trace.calls:
        if is_parameter(call.op_type):
            _link_parameter(flow, trace, call, writers)


def _writers(calls: Iterable[Call]) -> Writers:
    outputs = [(call, output) for call in calls for output in call.bad_outputs]
    by_row = sorted(outputs, key=row_of)
    return defaultdict(list, grouped((output.content, (call, output)) for call, output in by_row))


def _link_input(flow: Flow, trace: RankTrace, call: Call, operand: CallOperand, writers: Writers) -> None:
    written = latest_writer(call, operand, writers[operand.content], ordered=trace.is_ordered)
    if written is not None:
        flow.add_edge(Edge(written[0], call, operand))
    elif _is_own_write(call, operand):
        flow.own_writes[call].append(operand)
        insort(writers[operand.content], (call, operand), key=row_of)
    else:
        flow.unexplained[call].append(operand)


def _link_parameter(flow: Flow, trace: RankTrace, parameter: Call, writers: Writers) -> None:
    for value in parameter.bad_outputs:
        written = latest_writer(parameter, value, writers[value.content], ordered=trace.is_ordered)
        if written is not None:
            flow.add_edge(Edge(written[0], parameter, value))


def _link_container(flow: Flow, module: Call, writers: Writers) -> None:
    """Link a module to the call inside it that wrote its output: the module is dumped around that call."""
    for output in module.bad_outputs:
        for writer, written in writers.get(output.content, ()):
            is_inside = written.row < output.row or _may_be_inside(flow, writer, module, output)
            if writer is not module and is_inside:
                flow.add_edge(Edge(writer, module, output))
                break


def _may_be_inside(flow: Flow, later: Call, module: Call, output: CallOperand) -> bool:
    """Return whether a call that was dumped after a module may be inside it: msProbe dumps either first.

    What follows from the module is not inside. Tensors that are NaN all over are alike, so what has no inputs
    that would tell, such as a gradient, counts as something that follows.
    """
    if is_container(later.op_type) or (output.is_plain and not later.inputs):
        return False
    return module not in flow.upstream([later])


def _is_own_write(call: Call, operand: CallOperand) -> bool:
    """Return whether an input was dumped after the call had overwritten it."""
    if is_optimizer(call.op_type):
        return bool(call.bad_outputs)
    is_output = any(output.content == operand.content for output in call.bad_outputs)
    return is_output and writes_in_place(call.op_type)


def _assume_source(flow: Flow, call: Call, earlier: Call | None) -> None:
    if is_collective(call.op_type) and call.bad_outputs:
        _assume_sources(flow, call)
    elif earlier is not None:
        flow.add_edge(Edge(earlier, call, None, is_assumed=True))
        flow.unexplained.pop(call, None)


def _assume_edges(flow: Flow, trace: RankTrace) -> None:
    """Assume that something bad came from an earlier call if the dump cannot show what a call read.

    That is so for calls without any dumped input, for all calls if no outputs were dumped, and for
    collectives that may have overwritten their inputs. Nothing is assumed to come from a mask.
    """
    if not trace.is_ordered:
        return
    latest: Call | None = None
    for call in trace.calls:
        if is_parameter(call.op_type):
            continue
        if not flow.has_source(call):
            _assume_source(flow, call, latest if not call.inputs or not trace.has_outputs else None)
        if any(operand.holds != "-Inf" for operand in (*call.bad_inputs, *call.bad_outputs)):
            latest = call


def _link_collectives(flow: Flow) -> None:
    calls = [call for call in flow.calls if is_collective(call.op_type)]
    givers = grouped((call.key, call) for call in calls if flow.has_bad_input(call))
    takers = grouped((call.key, call) for call in calls if call.bad_outputs)
    for key, sources in givers.items():
        if not is_point_to_point(key.op_type):
            _link_named(flow, key, sources, takers.get(key, []))
    _link_renamed(flow, calls, [*chain.from_iterable(givers.values())])


def _link_named(flow: Flow, key: CallKey, givers: Sequence[Call], takers: Sequence[Call]) -> None:
    def outputs_of(call: Call) -> tuple[Content, ...]:
        return flow.traces[call.rank].collectives[call.key].outputs

    for outputs, targets in grouped((outputs_of(call), call) for call in takers).items():
        same_group = [call for call in givers if outputs_of(call) in (outputs, ())]
        sources = same_group or givers
        is_assumed = not same_group or (not outputs and not flow.order.are_names_unique)
        if len({call.rank for call in (*sources, *targets)}) > 1:
            flow.add_crossing(Crossing(key, tuple(sources), tuple(targets), is_assumed))


def _link_renamed(flow: Flow, calls: Iterable[Call], givers: Sequence[Call]) -> None:
    """Link the calls of a collective that has different names on its ranks, by equal outputs."""
    by_output = _by_content((call, call.bad_outputs) for call in givers)
    by_input = _by_content((call, call.bad_inputs) for call in givers)
    for call in calls:
        if flow.has_bad_input(call) or flow.arriving.get(call):
            continue
        sources = [source for source in _with_content(call, by_output) if source.op_type == call.op_type]
        if not sources and receives_as_is(call.op_type):
            sources = _with_content(call, by_input)
        _link_to_others(flow, call, sources)


def _by_content(operands: Iterable[tuple[Call, Iterable[CallOperand]]]) -> dict[Content, list[Call]]:
    return grouped((operand.content, call) for call, own in operands for operand in own)


def _with_content(call: Call, by_content: Mapping[Content, Sequence[Call]]) -> list[Call]:
    return [other for output in call.bad_outputs for other in by_content.get(output.content, ())]


def _link_to_others(flow: Flow, call: Call, sources: Iterable[Call]) -> None:
    """Link a call to those of these calls that ran on other ranks, unless their equality proves nothing."""
    others = tuple(dict.fromkeys(source for source in sources if source.rank != call.rank))
    if not others:
        return
    is_plain = all(output.is_plain for output in call.bad_outputs)
    if is_plain and all(call.key in flow.traces[other.rank].collectives for other in others):
        flow.twins.add(call)
    else:
        flow.add_crossing(Crossing(call.key, others, (call,)))


def _assume_sources(flow: Flow, call: Call) -> None:
    sources = tuple(_possible_sources(flow, call, include_own=not call.inputs or call in flow.own_writes))
    own = next((source for source in sources if source.rank == call.rank), None)
    if own is not None:
        flow.add_edge(Edge(own, call, None, is_assumed=True))
    others = tuple(source for source in sources if source is not own)
    if others:
        flow.add_crossing(Crossing(call.key, others, (call,), is_assumed=True))


def _possible_sources(flow: Flow, call: Call, *, include_own: bool) -> Iterator[Call]:
    """Yield the last bad call before a collective on each rank that may have put something bad into it."""
    for rank, trace in flow.traces.items():
        begun = trace.collectives.get(call.key)
        if begun is None:
            continue
        if include_own if rank == call.rank else _has_hidden_input(flow, trace, call.key):
            earlier = [
                other
                for other in trace.calls
                if other.row < begun.row and any(output.holds != "-Inf" for output in other.bad_outputs)
            ]
            yield from earlier[-1:]


def _has_hidden_input(flow: Flow, trace: RankTrace, key: CallKey) -> bool:
    call = next((call for call in trace.calls if call.key == key), None)
    return call is not None and (not call.inputs or call in flow.own_writes)
