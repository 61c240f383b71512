"""How something bad went from call to call in one step, on one rank and between ranks.

Tensors of equal content are taken for one tensor: what a call reads was written by the latest earlier call
that wrote the same bits. Collectives of one name are taken for one on all ranks. Clocks of different ranks
are never compared: ranks are ordered by collectives, which end on none of them before all have begun.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ingest.reader.origin.calls import Call, CallKey, Look, Operand
from ingest.reader.origin.kinds import (
    is_collective,
    is_container,
    is_optimizer,
    is_parameter,
    receives_as_is,
    writes_in_place,
)

Content: TypeAlias = tuple[object, ...]
#: By content, the calls of one rank that wrote it.
Writers: TypeAlias = dict[Content, list[tuple[Call, Operand]]]

#: Rounds in which levels settle; more are needed only where ranks disagree on the order of collectives.
_ROUNDS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """One call has given something bad to another."""

    source: Call
    target: Call
    operand: Operand | None
    """The input of `target` that brought it; None where that was on another rank, or is not known."""
    is_assumed: bool = False
    """Whether only the order speaks for it: what would show it was not dumped."""

    @property
    def crosses(self) -> bool:
        """Whether it went from one rank to another."""
        return self.source.rank != self.target.rank


@dataclass(eq=False)
class Flow:
    """The calls of one step that have to do with something bad, and what they gave to one another."""

    step: int
    looks: Mapping[int, Look]
    """By rank."""
    after: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    before: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    own_writes: dict[Call, list[Operand]] = field(default_factory=lambda: defaultdict(list))
    """Bad inputs that a call has written itself: they were dumped after an update in place."""
    unexplained: dict[Call, list[Operand]] = field(default_factory=lambda: defaultdict(list))
    """Bad inputs that no call of the dump has written."""
    level: dict[CallKey, int] = field(default_factory=dict)
    """How many collectives must have ended before one, at least, itself included."""

    @property
    def calls(self) -> Iterator[Call]:
        """All calls that have something bad, by rank and in order of execution."""
        for look in self.looks.values():
            yield from look.calls

    def level_of(self, call: Call) -> int:
        """Return the level of the last collective that had begun on its rank when a call ran; 0 for none.

        A call that must have ended before another one began has no higher level, and a lower one if they
        are on different ranks.
        """
        if call.key in self.level:
            return self.level[call.key]
        collectives = self.looks[call.rank].collectives
        begun = bisect_right(list(collectives.values()), call.row)
        return max((self.level[key] for key in list(collectives)[max(begun - 1, 0) : begun]), default=0)

    def reached(self, calls: Iterable[Call]) -> list[Call]:
        """Return these calls and those that something bad came to from them, nearest first."""
        found = dict.fromkeys(calls)
        queue = list(found)
        for call in queue:
            for edge in sorted(self.after.get(call, ()), key=lambda edge: (edge.crosses, edge.target.row)):
                if edge.target not in found:
                    found[edge.target] = None
                    queue.append(edge.target)
        return list(found)

    def is_read(self, call: Call, output: Operand) -> bool:
        """Whether a call of its rank has read an output, or a parameter is what it became."""
        return any(
            edge.operand is not None and edge.operand.content == output.content and not edge.crosses
            for edge in self.after.get(call, ())
        )

    def add(self, edge: Edge) -> None:
        """Note that a call has given something bad to another."""
        self.after[edge.source].append(edge)
        self.before[edge.target].append(edge)


def trace(step: int, looks: Mapping[int, Look]) -> Flow:
    """Find out what gave something bad to what in one step of the ranks that were looked at.

    Takes time and memory in proportion to the calls with something bad.
    """
    flow = Flow(step, looks)
    flow.level = _levels(looks.values())
    for look in looks.values():
        _trace_rank(flow, look)
    _trace_collectives(flow)
    for look in looks.values():
        _assume(flow, look)
    return flow


def _levels(looks: Iterable[Look]) -> dict[CallKey, int]:
    level: dict[CallKey, int] = {}
    orders = [list(look.collectives) for look in looks if look.is_ordered]
    for _ in range(_ROUNDS):
        changed = False
        for order in orders:
            least = 0
            for key in order:
                least = max(level.get(key, 0), least + 1)
                if level.get(key) != least:
                    level[key], changed = least, True
        if not changed:
            break
    return level


def _trace_rank(flow: Flow, look: Look) -> None:
    """Join each bad tensor that a call of one rank read to the call that wrote it."""
    writers: Writers = defaultdict(list)
    parameters = [call for call in look.calls if is_parameter(call.op_type)]
    calls = [call for call in look.calls if not is_parameter(call.op_type)]
    # Parameters are dumped as they are in the end; only where there is no order may they be what was read.
    for call in look.calls if not look.is_ordered else calls:
        for output in call.bad_outputs:
            writers[output.content].append((call, output))
    for call in calls:
        for operand in call.bad_inputs:
            _trace_input(flow, look, call, operand, writers)
    for call in calls:
        if is_container(call.op_type):
            _trace_container(flow, call, writers)
    for call in parameters:
        for operand in call.bad_outputs:
            source = _writer(call, operand, writers[operand.content], ordered=look.is_ordered)
            if source is not None:
                flow.add(Edge(source, call, operand))


def _trace_input(flow: Flow, look: Look, call: Call, operand: Operand, writers: Writers) -> None:
    source = _writer(call, operand, writers[operand.content], ordered=look.is_ordered)
    if source is not None:
        flow.add(Edge(source, call, operand))
    elif _is_own_write(call, operand):
        flow.own_writes[call].append(operand)
        writers[operand.content].append((call, operand))
    else:
        flow.unexplained[call].append(operand)


def _writer(
    call: Call, operand: Operand, candidates: list[tuple[Call, Operand]], *, ordered: bool
) -> Call | None:
    """Return the latest call before an operand that wrote its content; one of the same shape if there is."""
    possible = [
        (writer, output)
        for writer, output in candidates
        if writer is not call and (output.row < operand.row or not ordered)
    ]
    if not possible:
        return None
    return max(
        possible,
        key=lambda one: (not is_container(one[0].op_type), one[1].shape == operand.shape, one[1].row),
    )[0]


def _is_own_write(call: Call, operand: Operand) -> bool:
    if is_optimizer(call.op_type):
        return bool(call.bad_outputs)
    return writes_in_place(call.op_type) and any(one.content == operand.content for one in call.bad_outputs)


def _trace_container(flow: Flow, call: Call, writers: Writers) -> None:
    """Join a module to the call inside it that gave its output: it is dumped around that call."""
    for output in call.bad_outputs:
        for writer, written in writers.get(output.content, ()):
            inner = not is_container(writer.op_type) or written.row < output.row
            if writer is not call and inner:
                flow.add(Edge(writer, call, output))
                break


def _trace_collectives(flow: Flow) -> None:
    """Join what a collective gave on one rank to what was put in on the others."""
    calls = [call for call in flow.calls if is_collective(call.op_type)]
    givers = [call for call in calls if _given(flow, call)]
    by_key: dict[CallKey, list[Call]] = defaultdict(list)
    by_output: dict[Content, list[Call]] = defaultdict(list)
    by_input: dict[Content, list[Call]] = defaultdict(list)
    for call in givers:
        by_key[call.key].append(call)
        for operand in call.bad_outputs:
            by_output[operand.content].append(call)
        for operand in call.bad_inputs:
            by_input[operand.content].append(call)
    for call in calls:
        outputs = call.bad_outputs
        sources = _others(call, by_key[call.key]) if outputs else []
        if not sources and not _given(flow, call):
            # The same collective under another name: what it gives is the same, bit for bit.
            sources = _others(call, (one for output in outputs for one in by_output[output.content]))
        if not sources and not _given(flow, call) and receives_as_is(call.op_type):
            sources = _others(call, (one for output in outputs for one in by_input[output.content]))
        for source in sources:
            flow.add(Edge(source, call, None))


def _others(call: Call, sources: Iterable[Call]) -> list[Call]:
    return [source for source in dict.fromkeys(sources) if source.rank != call.rank]


def _given(flow: Flow, call: Call) -> bool:
    """Whether something bad was put into a collective on the rank of a call."""
    own = flow.own_writes.get(call, ())
    return any(operand not in own for operand in call.bad_inputs)


def _assume(flow: Flow, look: Look) -> None:
    """Where the dump cannot show what a call read, take it that something bad came from before.

    That is so for calls without any input in the dump, for all calls where no outputs were dumped, and for
    collectives that may have overwritten their inputs. Nothing is assumed of a mask.
    """
    if not look.is_ordered:
        return
    latest: Call | None = None
    for call in look.calls:
        if is_parameter(call.op_type):
            continue
        hidden = not call.inputs or call in flow.own_writes
        if is_collective(call.op_type) and call.bad_outputs and not _is_explained(flow, call):
            for source in _before_collective(flow, call, hidden=hidden):
                flow.add(Edge(source, call, None, is_assumed=True))
        elif latest is not None and not _is_explained(flow, call) and _is_blind(look, call):
            flow.add(Edge(latest, call, None, is_assumed=True))
            flow.unexplained.pop(call, None)
        if any(operand.is_bad and operand.holds != "-Inf" for operand in call.operands):
            latest = call


def _is_blind(look: Look, call: Call) -> bool:
    return not call.inputs or not look.has_outputs


def _is_explained(flow: Flow, call: Call) -> bool:
    return bool(flow.before.get(call))


def _before_collective(flow: Flow, call: Call, *, hidden: bool) -> Iterator[Call]:
    """Yield the last bad call before a collective on each rank that may have put something bad into it."""
    for rank, look in flow.looks.items():
        begin = look.collectives.get(call.key)
        own = rank == call.rank
        if begin is None or (own and not hidden):
            continue
        there = next((one for one in look.calls if one.key == call.key), None)
        if not own and (there is None or (there.inputs and there not in flow.own_writes)):
            continue  # its input is known
        earlier = [
            one
            for one in look.calls
            if one.row < begin and any(o.is_bad and o.holds != "-Inf" for o in one.outputs)
        ]
        if earlier:
            yield earlier[-1]
