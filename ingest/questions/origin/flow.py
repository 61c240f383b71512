"""The flow of something bad from call to call in one step, on one rank and between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ingest.questions.origin.calls import Call, CallOperand, RankTrace
from ingest.questions.origin.collective_order import CollectiveOrder
from ingest.reader.calls import CallKey
from ingest.reader.operator_kinds import is_parameter


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
    """The calls of the collective with a bad output."""
    is_assumed: bool = False
    """Whether only the order of execution suggests it, because the input was not dumped, or overwritten."""


@dataclass(eq=False)
class Flow:
    """The calls of one step that have a bad tensor, and what passed between them."""

    step: int
    traces: Mapping[int, RankTrace]
    """By rank."""
    order: CollectiveOrder = field(init=False)
    after: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    """By call, the edges that leave it."""
    before: dict[Call, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    """By call, the edges that arrive at it."""
    leaving: dict[Call, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    """By call, the collectives into which it put something bad."""
    arriving: dict[Call, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    """By call of a collective, the crossings by which its output may have come from another rank."""
    own_writes: dict[Call, list[CallOperand]] = field(default_factory=lambda: defaultdict(list))
    """Bad inputs that a call has written itself: they were dumped after an update in place."""
    unexplained: dict[Call, list[CallOperand]] = field(default_factory=lambda: defaultdict(list))
    """Bad inputs that no call in the dump has written."""
    twins: set[Call] = field(default_factory=set)
    """Calls of collectives that may or may not be the same as one of another name on another rank."""

    def __post_init__(self) -> None:
        """Find out how collectives order the ranks."""
        self.order = CollectiveOrder(self.traces)

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

    def has_bad_input(self, call: Call) -> bool:
        """Return whether a call read something bad that it had not written itself."""
        own = self.own_writes.get(call, ())
        return any(operand not in own for operand in call.bad_inputs)

    def downstream(self, calls: Iterable[Call]) -> list[Call]:
        """Return these calls and those to which something bad came from them, nearest first."""
        reached = dict.fromkeys(calls)
        queue, passed = list(reached), set[Crossing]()
        for call in queue:
            following = sorted((edge.target for edge in self.after.get(call, ())), key=lambda call: call.row)
            for crossing in self.leaving.get(call, ()):
                if crossing not in passed:
                    passed.add(crossing)
                    following += crossing.targets
            queue += [target for target in dict.fromkeys(following) if target not in reached]
            reached |= dict.fromkeys(following)
        return list(reached)

    def upstream(self, calls: Iterable[Call]) -> set[Call]:
        """Return these calls and those from which something bad came to them."""
        reached = set(calls)
        queue, passed = list(reached), set[Crossing]()
        for call in queue:
            preceding = {edge.source for edge in self.before.get(call, ())}
            for crossing in self.arriving.get(call, ()):
                if crossing not in passed:
                    passed.add(crossing)
                    preceding.update(crossing.sources)
            queue += preceding - reached
            reached |= preceding
        return reached

    def unread_outputs(self, call: Call) -> list[CallOperand]:
        """Return bad outputs of a call that no other call read; of a parameter, all of its bad outputs."""
        if is_parameter(call.op_type):
            return list(call.bad_outputs)
        return [output for output in call.bad_outputs if not self._is_read(call, output)]

    def _is_read(self, call: Call, output: CallOperand) -> bool:
        return any(
            edge.operand is not None and edge.operand.content == output.content
            for edge in self.after.get(call, ())
        )
