"""How something bad went from call to call in one step, on one rank and between ranks.

Tensors of equal content are taken for one tensor: what a call reads was written by the latest earlier call
that wrote the same bits. Collectives of one name are taken for one on the ranks where they gave the same, for
there may be several groups of ranks, and compilers number operators anew on each rank. Clocks of different
ranks are never compared: ranks are ordered by collectives that end on none of them before all have begun.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from ingest.questions.origin.calls import Begun, Call, CallKey, CallOperand, Content, RankTrace
from ingest.questions.origin.kinds import (
    is_collective,
    is_container,
    is_optimizer,
    is_parameter,
    is_point_to_point,
    receives_as_is,
    synchronises,
    writes_in_place,
)

#: By content, the calls of one rank that wrote it.
Writers: TypeAlias = dict[Content, list[tuple[Call, CallOperand]]]
#: A collective that several ranks meet in: its name, and what it gave where that tells groups apart.
Meeting: TypeAlias = tuple[CallKey, tuple[Content, ...]]

#: Rounds in which levels settle; more are needed only where ranks disagree on the order of collectives.
_ROUNDS = 100
#: Calls that may have written one tensor, of which the best is chosen; the latest ones.
_CANDIDATES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """One call has given something bad to another, on one rank."""

    source: Call
    target: Call
    operand: CallOperand | None
    """The input of `target` that brought it; None where that is not known."""
    is_assumed: bool = False
    """Whether only the order speaks for it: what would show it was not dumped."""


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """What something bad went through from rank to rank.

    One for all ranks: an edge for each pair of them would be thousands for each collective.
    """

    key: CallKey
    sources: tuple[Call, ...]
    """On the ranks where something bad was put in."""
    targets: tuple[Call, ...]
    """Calls of the collective that gave something bad."""
    is_assumed: bool = False
    """Whether only the order speaks for it: what was put in was not dumped, or overwritten."""


@dataclass(eq=False)
class Flow:
    """The calls of one step that have to do with something bad, and what they gave to one another."""

    step: int
    looks: Mapping[int, RankTrace]
    """By rank."""
    after: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    before: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    leaving: dict[Call, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    """By call, the collectives that it put something bad into."""
    arriving: dict[Call, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    """By call of a collective, where what it gave may have been put in on another rank."""
    own_writes: dict[Call, list[CallOperand]] = field(default_factory=lambda: defaultdict(list))
    """Bad inputs that a call has written itself: they were dumped after an update in place."""
    unexplained: dict[Call, list[CallOperand]] = field(default_factory=lambda: defaultdict(list))
    """Bad inputs that no call of the dump has written."""
    level: dict[Meeting, int] = field(default_factory=dict)
    """How many collectives must have ended before one, at least, itself included."""
    twins: set[Call] = field(default_factory=set)
    """Calls of collectives that another one, of another name, may be on another rank: nothing tells."""

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
        begun = self.looks[call.rank].collectives.get(call.key)
        if begun is not None and (meeting := self._meeting(call.key, begun)) in self.level:
            return self.level[meeting]
        rows, meetings = self.meetings[call.rank]
        place = bisect_right(rows, call.row)
        return self.level.get(meetings[place - 1], 0) if place else 0

    @cached_property
    def meetings(self) -> dict[int, tuple[list[int], list[Meeting]]]:
        """By rank, the collectives that order it among others: their rows, and which these are."""
        found: dict[int, tuple[list[int], list[Meeting]]] = {}
        for rank, look in self.looks.items():
            every = [(begun.row, self._meeting(key, begun)) for key, begun in look.collectives.items()]
            some = [(row, meeting) for row, meeting in every if meeting is not None and look.is_ordered]
            found[rank] = [row for row, _ in some], [meeting for _, meeting in some]
        return found

    def _meeting(self, key: CallKey, begun: Begun) -> Meeting | None:
        known = begun.gave or self.are_names_alike
        return (key, begun.gave) if known and synchronises(key.op_type) else None

    @cached_property
    def are_names_alike(self) -> bool:
        """Whether no collective shows that its name is that of another one on another rank."""
        gave: dict[CallKey, tuple[Content, ...]] = {}
        for look in self.looks.values():
            for key, begun in look.collectives.items():
                if begun.gave and gave.setdefault(key, begun.gave) != begun.gave:
                    return False
        return True

    def after_of(self, call: Call) -> dict[int, int]:
        """Return by rank the row after which everything ran later than a call, as collectives show."""
        where: dict[Meeting, list[tuple[int, int]]] = defaultdict(list)
        for rank, (rows, meetings) in self.meetings.items():
            for row, meeting in zip(rows, meetings, strict=True):
                where[meeting].append((rank, row))
        found, queue, passed = {call.rank: call.row}, [call.rank], set[Meeting]()
        for rank in queue:
            rows, meetings = self.meetings[rank]
            for meeting in meetings[bisect_right(rows, found[rank]) :]:
                if meeting in passed:
                    continue
                passed.add(meeting)
                for other, row in where[meeting]:
                    if other not in found or row < found[other]:
                        found[other] = row
                        queue.append(other)
        return found

    def is_followed(self, call: Call) -> bool:
        """Whether something bad came to a call from another one."""
        return bool(self.before.get(call) or self.arriving.get(call))

    def reached(self, calls: Iterable[Call]) -> list[Call]:
        """Return these calls and those that something bad came to from them, nearest first."""
        found = dict.fromkeys(calls)
        queue, passed = list(found), set[Crossing]()
        for call in queue:
            following = sorted((edge.target for edge in self.after.get(call, ())), key=lambda one: one.row)
            for crossing in self.leaving.get(call, ()):
                if crossing not in passed:
                    passed.add(crossing)
                    following += crossing.targets
            queue += [one for one in dict.fromkeys(following) if one not in found]
            found |= dict.fromkeys(following)
        return list(found)

    def upstream(self, calls: Iterable[Call]) -> set[Call]:
        """Return these calls and those from which something bad came to them."""
        found = set(calls)
        queue, passed = list(found), set[Crossing]()
        for call in queue:
            preceding = {edge.source for edge in self.before.get(call, ())}
            for crossing in self.arriving.get(call, ()):
                if crossing not in passed:
                    passed.add(crossing)
                    preceding.update(crossing.sources)
            queue += preceding - found
            found |= preceding
        return found

    def is_read(self, call: Call, output: CallOperand) -> bool:
        """Whether a call of its rank has read an output, or a parameter is what it became."""
        return any(
            edge.operand is not None and edge.operand.content == output.content
            for edge in self.after.get(call, ())
        )

    def ends_of(self, call: Call) -> list[CallOperand]:
        """Return bad outputs of a call that nobody read: parameters, and what else is an end."""
        if is_parameter(call.op_type):
            return list(call.bad_outputs)
        return [output for output in call.bad_outputs if not self.is_read(call, output)]

    def add(self, edge: Edge) -> None:
        """Note that a call has given something bad to another on its rank."""
        self.after[edge.source].append(edge)
        self.before[edge.target].append(edge)

    def cross(self, crossing: Crossing) -> None:
        """Note that something bad went from rank to rank."""
        for call in crossing.sources:
            self.leaving[call].append(crossing)
        for call in crossing.targets:
            self.arriving[call].append(crossing)


def trace(step: int, looks: Mapping[int, RankTrace]) -> Flow:
    """Find out what gave something bad to what in one step of the ranks that were looked at.

    Takes time and memory in proportion to the calls with something bad.
    """
    flow = Flow(step, looks)
    flow.level = _levels(meetings for _, meetings in flow.meetings.values())
    for look in looks.values():
        _trace_rank(flow, look)
    _trace_collectives(flow)
    for look in looks.values():
        _assume(flow, look)
    return flow


def _levels(meetings: Iterable[Sequence[Meeting]]) -> dict[Meeting, int]:
    level: dict[Meeting, int] = {}
    # Ranks that run the same collectives in the same order are one for this.
    orders = dict.fromkeys(map(tuple, meetings))
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


def _trace_rank(flow: Flow, look: RankTrace) -> None:
    """Join each bad tensor that a call of one rank read to the call that wrote it."""
    parameters = [call for call in look.calls if is_parameter(call.op_type)]
    calls = [call for call in look.calls if not is_parameter(call.op_type)]
    # Parameters are dumped as they are in the end; only where there is no order may they be what was read.
    writers = _writers(look.calls if not look.is_ordered else calls)
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


def _writers(calls: Iterable[Call]) -> Writers:
    writers: Writers = defaultdict(list)
    for call in calls:
        for output in call.bad_outputs:
            writers[output.content].append((call, output))
    for written in writers.values():
        written.sort(key=_row)
    return writers


def _trace_input(flow: Flow, look: RankTrace, call: Call, operand: CallOperand, writers: Writers) -> None:
    source = _writer(call, operand, writers[operand.content], ordered=look.is_ordered)
    if source is not None:
        flow.add(Edge(source, call, operand))
    elif _is_own_write(call, operand):
        flow.own_writes[call].append(operand)
        insort(writers[operand.content], (call, operand), key=_row)
    else:
        flow.unexplained[call].append(operand)


def _writer(
    call: Call, operand: CallOperand, candidates: list[tuple[Call, CallOperand]], *, ordered: bool
) -> Call | None:
    """Return the latest call before an operand that wrote its content; one of the same shape if there is."""
    end = bisect_left(candidates, operand.row, key=_row) if ordered else len(candidates)
    # Tensors that are NaN as a whole are all alike: to compare each with each would take for ever.
    near = candidates[max(end - _CANDIDATES, 0) : end]
    possible = [(writer, output) for writer, output in near if writer is not call]
    if not possible:
        return None
    return max(
        possible,
        key=lambda one: (not is_container(one[0].op_type), one[1].shape == operand.shape, one[1].row),
    )[0]


def _row(written: tuple[Call, CallOperand]) -> int:
    return written[1].row


def _is_own_write(call: Call, operand: CallOperand) -> bool:
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
    """Join what a collective gave on each rank to what was put in on the others."""
    calls = [call for call in flow.calls if is_collective(call.op_type)]
    givers: dict[CallKey, list[Call]] = defaultdict(list)
    takers: dict[CallKey, list[Call]] = defaultdict(list)
    for call in calls:
        if was_given(flow, call):
            givers[call.key].append(call)
        if call.bad_outputs:
            takers[call.key].append(call)
    for key, sources in givers.items():
        if not is_point_to_point(key.op_type):
            _cross(flow, key, sources, takers[key])
    _trace_renamed(flow, calls, [call for of in givers.values() for call in of])


def _cross(flow: Flow, key: CallKey, givers: Sequence[Call], takers: Sequence[Call]) -> None:
    """Join what was put into collectives of one name to what they gave.

    Where all ranks of a group are given the same, that tells the groups apart.
    """
    groups: dict[object, list[Call]] = defaultdict(list)
    for call in takers:
        groups[_gave(flow, call)].append(call)
    for gave, targets in groups.items():
        sources = [call for call in givers if _gave(flow, call) in (gave, ())]
        is_assumed = not sources or (not gave and not flow.are_names_alike)
        if len({call.rank for call in (*(sources or givers), *targets)}) > 1:
            flow.cross(Crossing(key, tuple(sources or givers), tuple(targets), is_assumed))


def _gave(flow: Flow, call: Call) -> tuple[Content, ...]:
    return flow.looks[call.rank].collectives[call.key].gave


def _trace_renamed(flow: Flow, calls: Iterable[Call], givers: Iterable[Call]) -> None:
    """Join calls of a collective under different names, by what they gave: that is the same, bit for bit."""
    by_output: dict[object, list[Call]] = defaultdict(list)
    by_input: dict[Content, list[Call]] = defaultdict(list)
    for call in givers:
        for operand in call.bad_outputs:
            by_output[call.op_type, operand.content].append(call)
        for operand in call.bad_inputs:
            by_input[operand.content].append(call)
    for call in calls:
        if was_given(flow, call) or flow.arriving.get(call):
            continue
        contents = [output.content for output in call.bad_outputs]
        sources = [one for content in contents for one in by_output.get((call.op_type, content), ())]
        if not sources and receives_as_is(call.op_type):
            sources = [one for content in contents for one in by_input.get(content, ())]
        others = tuple(dict.fromkeys(one for one in sources if one.rank != call.rank))
        if not others:
            continue
        if all(output.is_plain for output in call.bad_outputs) and all(
            call.key in flow.looks[one.rank].collectives for one in others
        ):
            flow.twins.add(call)  # that it has the same bits proves nothing
        else:
            flow.cross(Crossing(call.key, others, (call,)))


def was_given(flow: Flow, call: Call) -> bool:
    """Whether something bad was put into a collective on the rank of a call."""
    own = flow.own_writes.get(call, ())
    return any(operand not in own for operand in call.bad_inputs)


def _assume(flow: Flow, look: RankTrace) -> None:
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
        if not flow.is_followed(call):
            if is_collective(call.op_type) and call.bad_outputs:
                _assume_collective(flow, call)
            elif latest is not None and (not call.inputs or not look.has_outputs):
                flow.add(Edge(latest, call, None, is_assumed=True))
                flow.unexplained.pop(call, None)
        if any(operand.holds != "-Inf" for operand in (*call.bad_inputs, *call.bad_outputs)):
            latest = call


def _assume_collective(flow: Flow, call: Call) -> None:
    hidden = not call.inputs or call in flow.own_writes
    sources = tuple(_before_collective(flow, call, hidden=hidden))
    own = next((source for source in sources if source.rank == call.rank), None)
    if own is not None:
        flow.add(Edge(own, call, None, is_assumed=True))
    others = tuple(source for source in sources if source is not own)
    if others:
        flow.cross(Crossing(call.key, others, (call,), is_assumed=True))


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
            if one.row < begin.row and any(operand.holds != "-Inf" for operand in one.bad_outputs)
        ]
        if earlier:
            yield earlier[-1]
