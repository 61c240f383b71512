"""The roots of one step: the calls at which something bad began, and how much each of them matters.

Which steps and ranks may have one follows from the totals of their commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

from ingest.questions.origin.calls import Call, CallOperand, Flow, IsBad, RankTrace, trace_rank
from ingest.reader.operator_kinds import (
    CallKey,
    checks_finite,
    is_collective,
    is_container,
    is_parameter,
    is_softmax,
    makes_masks,
    needs_two_inputs,
)
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import CleanSteps
from workers.errors import DamagedStore
from workers.model import StepKey, grouped
from workers.store.model import CommitSummary

#: Ranks of one step whose index is read at once; this bounds the memory. In a directory there is little to
#: wait for, and more threads keep each other from decoding: with eight, it takes half as long again.
_RANKS_AT_ONCE, _RANKS_AT_ONCE_IN_DIRECTORY = 8, 2

_NAN, _INF = ("nan_count",), ("pos_inf_count", "neg_inf_count")
#: The counts that are zero in a step without what is searched for, by cause.
_COUNTS = {"auto": (*_NAN, *_INF), "nan": _NAN, "inf": _INF}

#: The numbers of tensors with NaN, +Inf and -Inf.
_Totals: TypeAlias = tuple[int, int, int]


@dataclass
class Suspects:
    """The steps of a snapshot that may hold what is searched for, and their traces.

    Memory: the indexes of one step of eight ranks while they are read, and the traces of one step.
    """

    snapshot: Snapshot
    is_bad: IsBad
    cause: str
    damaged: list[LeftOut] = field(default_factory=list)
    _harmless: set[tuple[int, _Totals]] = field(default_factory=set)
    """What ranks hold in steps that turned out to be harmless."""
    _traced: tuple[int, dict[int, RankTrace]] = (-1, {})

    @cached_property
    def _clean(self) -> CleanSteps:
        return CleanSteps(self.snapshot, _COUNTS.get(self.cause, ()))

    def steps(self) -> Iterator[int]:
        """Yield the steps that may hold what is searched for, in order.

        Where the totals of the commits do not say that a step holds it, the cubes may know that it does not.
        """
        for step in self.snapshot.steps:
            is_in_doubt = self.cause != "where" and not self.certain_ranks(step)
            if self.ranks(step) and not (is_in_doubt and step in self._clean):
                yield step

    def ranks(self, step: int) -> list[int]:
        """Return the ranks of a step that may hold what is searched for."""
        return [rank for rank, opened in self.snapshot.of_step(step).items() if self.may_hold(opened)]

    def may_hold(self, step: Step) -> bool:
        """Return whether one step of one rank may hold what is searched for."""
        summary = step.commit.summary
        # Statistics from the dump may have lost the number of NaN, and a condition may be on any column.
        return self.cause == "where" or bool(summary.statistics_only) or self._holds(summary)

    def certain_ranks(self, step: int) -> list[int]:
        """Return the ranks of a step that certainly hold what is searched for; none if it is a condition."""
        if self.cause == "where":
            return []
        steps = self.snapshot.of_step(step)
        return [rank for rank, opened in steps.items() if self._holds(opened.commit.summary)]

    def worrying_ranks(self, step: int) -> list[int]:
        """Return the certain ranks of a step without those that hold as much as in a harmless step.

        Only totals are compared, so no index is read.
        """
        return [
            rank
            for rank in self.certain_ranks(step)
            if (rank, self._bad_tensors(step, rank)) not in self._harmless
        ]

    def mark_harmless(self, step: int, ranks: Iterable[int]) -> None:
        """Treat ranks of other steps in which as many tensors are bad as harmless, as these of this step."""
        self._harmless |= {(rank, self._bad_tensors(step, rank)) for rank in ranks}

    def trace(self, step: int, ranks: Sequence[int]) -> dict[int, RankTrace]:
        """Return the traces of a step of these ranks; damaged ones are left out and added to `damaged`."""
        steps = self.snapshot.of_step(step)
        known = self._traced[1] if self._traced[0] == step else {}

        def trace_one(rank: int) -> RankTrace | LeftOut:
            try:
                return trace_rank(steps[rank], self.is_bad)
            except DamagedStore as exc:
                return LeftOut.damaged(StepKey(rank, step), exc.message)

        unknown = [rank for rank in ranks if rank in steps and rank not in known]
        at_once = _RANKS_AT_ONCE_IN_DIRECTORY if self.snapshot.store.objects.is_local else _RANKS_AT_ONCE
        with ThreadPoolExecutor(at_once, thread_name_prefix="dump-ingest-origin") as threads:
            new = list(threads.map(trace_one, unknown))
        named = {left.key for left in self.damaged}
        self.damaged += [left for left in new if isinstance(left, LeftOut) and left.key not in named]
        traces = known | {trace.rank: trace for trace in new if isinstance(trace, RankTrace)}
        self._traced = (step, traces)
        return {rank: traces[rank] for rank in ranks if rank in traces}

    def _holds(self, summary: CommitSummary) -> bool:
        if self.cause == "nan":
            return summary.nan_tensors > 0
        if self.cause == "inf":
            return summary.pos_inf_tensors + summary.neg_inf_tensors > 0
        return summary.anomalous_tensors > 0

    def _bad_tensors(self, step: int, rank: int) -> _Totals:
        """Return the numbers of tensors with NaN, +Inf and -Inf; a unique value if they are not known."""
        summary = self.snapshot.summary(StepKey(rank, step))
        if summary.statistics_only or self.cause == "where":
            return (-1, step, rank)
        return (summary.nan_tensors, summary.pos_inf_tensors, summary.neg_inf_tensors)


BORN, CAME_IN, THROUGH = "born", "came in", "came through a collective"


class Weight(IntEnum):
    """How much a root matters; the lowest weight is the worst."""

    REAL = 0
    """It became NaN, or reached an output of the network or a parameter."""
    ABSORBED = 1
    """Infinity that an operator produced, and that others turned into finite numbers."""
    HARMLESS = 2
    """A mask, or infinity in the data, that others turned into finite numbers; memory that nothing read."""


#: What something bad leads to, and the calls from which it gets there. Found for all calls of a step at once:
#: there may be many roots. `nan`: NaN, or what is not known to be infinity. `ends`: an output that no call
#: read, or a parameter. `checks`: an operator that looks for NaN and Inf. `births`: a call that produced NaN
#: from infinity; `hard births`: one that is not a softmax.
Consequences: TypeAlias = dict[str, set[Call]]


def consequences_of(flow: Flow) -> Consequences:
    """Follow the flow of a step backwards from its ends."""
    calls = list(flow.calls)
    births = [call for call in calls if _produces_nan(flow, call)]
    return {
        "nan": flow.upstream(filter(_has_other_than_infinity, calls)),
        "ends": flow.upstream(filter(flow.unread_outputs, calls)),
        "checks": flow.upstream(call for call in calls if checks_finite(call.op_type)),
        "parameters": flow.upstream(call for call in calls if is_parameter(call.op_type)),
        "births": flow.upstream(births),
        "hard births": flow.upstream(call for call in births if not is_softmax(call.op_type)),
    }


@dataclass(frozen=True, eq=False)
class Root:
    """A call at which something bad began."""

    flow: Flow
    consequences: Consequences
    call: Call
    how: str
    """`born`: its inputs were clean. `came in`: an input was bad, and no call in the dump wrote it.
    `came through a collective`: its own input was clean, and those of the other ranks are not known."""
    operand: CallOperand | None = None
    other_readers: tuple[Call, ...] = ()
    """Other calls that read the same bad tensor."""
    is_weak: bool = False
    from_other_rank: bool = False
    """Whether that is on another rank, and was brought by a collective that the dump does not have."""

    @property
    def starts(self) -> tuple[Call, ...]:
        """The first calls that show it."""
        return (self.call, *self.other_readers)

    @cached_property
    def reached(self) -> list[Call]:
        """The calls where it began, and all to which something bad came from them."""
        return self.flow.downstream(self.starts)

    @cached_property
    def holds(self) -> str:
        """What is wrong: `NaN`, `+Inf`, `-Inf`, `Inf`, or "" if that is not known."""
        bad = [self.operand] if self.operand is not None else self.call.bad_outputs
        kinds = {operand.holds for operand in bad}
        if len(kinds) > 1:
            return "NaN" if "NaN" in kinds else "Inf"
        return next(iter(kinds), "")

    @property
    def trace(self) -> RankTrace:
        """The trace of its rank."""
        return self.flow.traces[self.call.rank]

    @property
    def row(self) -> int:
        """Its place in the order of execution of its rank."""
        return self.operand.row if self.operand is not None else self.call.row

    @cached_property
    def order(self) -> tuple[int, int, int, int]:
        """A sort key that does not contradict any synchronisation point.

        Between two of them, the place in the program counts: most ranks run the same.
        """
        return (self.flow.step, self.flow.order.level_of(self.call), self.row, self.call.rank)

    @property
    def becomes_nan(self) -> bool:
        """Whether any tensor that it reached holds NaN, or something that is not known to be infinity."""
        return (self.operand is not None and not _is_infinity(self.operand)) or self.leads_to("nan")

    def leads_to(self, consequence: str) -> bool:
        """Return whether it led to one of the `Consequences` in its step."""
        return not self.consequences[consequence].isdisjoint(self.starts)

    @property
    def is_unread(self) -> bool:
        """Whether all that ranks with something bad computed last is clean."""
        return all(trace.ends_clean for trace in self.flow.traces.values())

    @cached_property
    def weight(self) -> Weight:
        """How much it matters."""
        if self.is_unread:
            return Weight.HARMLESS
        if self.becomes_nan:
            return Weight.REAL
        is_one_sided = not self.trace.has_inputs or not self.trace.has_outputs
        if self.holds == "-Inf" and (is_one_sided or is_parameter(self.call.op_type)):
            return Weight.HARMLESS
        if self.leads_to("ends") or is_one_sided:
            return Weight.REAL
        if self.how == BORN and self.holds != "-Inf":
            return Weight.ABSORBED
        return Weight.HARMLESS

    def doubts(self) -> list[str]:
        """Return the doubts that the dump leaves, as clauses of a text that names the call."""
        doubts = []
        if not self.trace.is_ordered:
            doubts.append("the dump does not tell in which order operators ran: data flow alone decides")
        if self.how == BORN:
            doubts += self._doubts_of_birth()
        elif self.how == CAME_IN and not self.trace.has_outputs:
            doubts.append("no outputs were dumped: the operator that wrote this input is not named")
        if self.call in self.flow.twins:
            doubts.append("collectives of other names on other ranks gave the same: it may be one of these")
        elif self.from_other_rank:
            doubts.append("an operator of another rank bore it: it may come from there, by a reduction")
        elif self.is_weak:
            doubts.append("something bad was there before on this rank: it may follow from that")
        return doubts

    def _doubts_of_birth(self) -> Iterator[str]:
        call = self.call
        if not call.inputs:
            has_inputs = self.trace.has_inputs
            what = f"no input of {call.op_name} was dumped" if has_inputs else "no inputs were dumped"
            yield f"{what}: that they were clean is not known"
            if call.op_type == "Gradient" and (slopes := self.trace.infinite_slopes):
                yield f"{' and '.join(slopes[:3])}, where the derivative is infinite: that may have made it"
        elif call.missing_slots:
            slots = ", ".join(map(str, call.missing_slots))
            yield f"input {slots} of {call.op_name} was not dumped; it may be empty, or a parameter"
        elif call.inputs == 1 and needs_two_inputs(call.op_type):
            yield f"only one input of {call.op_name} was dumped; a parameter may have been bad"
        if own := self.flow.own_writes.get(call):
            names = ", ".join(f"{operand.io} {operand.slot}" for operand in own)
            yield (
                f"{names} of {call.op_name} holds it, too: the operator writes in place, so that may be what "
                "it wrote and not what it read"
            )
        if is_container(call.op_type):
            yield f"{call.op_name} is a module: an operator inside it that was not dumped may be the first"


def roots_of(flow: Flow) -> list[Root]:
    """Return the roots of a step; calls that follow from others are not among them.

    The order of the roots does not contradict any synchronisation point.
    """
    consequences = consequences_of(flow)
    roots = [*_born(flow, consequences), *_came_in(flow, consequences)]
    rows_of = grouped((root.call.rank, root.row) for root in roots if root.holds != "-Inf")
    first_rows = {rank: min(rows) for rank, rows in rows_of.items()}
    # Where collectives were dumped, they tell what came from other ranks. Else outputs without inputs, as the
    # gradients that a trainer dumps after they were reduced, may have come from where an operator bore it.
    has_collectives = any(trace.collectives for trace in flow.traces.values())
    own = [root for root in roots if root.how == BORN and root.call.inputs and root.call not in flow.twins]
    births = set() if has_collectives else {root.call.rank for root in own}
    marked = [_marked(root, first_rows.get(root.call.rank, root.row), births) for root in roots]
    return sorted(marked, key=lambda root: root.order)


def _marked(root: Root, first_row: int, births: set[int]) -> Root:
    """Mark a root as weak that may follow from something bad before it on its rank, or from another rank."""
    has_inputs = root.how == BORN and bool(root.call.inputs)
    follows = not has_inputs and root.trace.is_ordered and first_row < root.row
    is_weak = follows or root.call in root.flow.twins
    is_hidden_birth = root.how == BORN and not has_inputs and not is_weak
    is_foreign = is_hidden_birth and bool(births - {root.call.rank})
    return replace(root, is_weak=is_weak or is_foreign, from_other_rank=is_foreign)


def _has_other_than_infinity(call: Call) -> bool:
    return not all(map(_is_infinity, call.bad_outputs))


def _is_infinity(operand: CallOperand) -> bool:
    return operand.holds.endswith("Inf")


def _born(flow: Flow, consequences: Consequences) -> Iterator[Root]:
    for call in flow.calls:
        if not call.bad_outputs or is_parameter(call.op_type):
            continue
        if flow.has_source(call) or flow.unexplained.get(call):
            continue
        # A sum of finite numbers may overflow, but is never NaN.
        from_elsewhere = call in flow.own_writes or not call.inputs or _has_other_than_infinity(call)
        how = THROUGH if is_collective(call.op_type) and from_elsewhere else BORN
        yield Root(flow, consequences, call, how)


def _came_in(flow: Flow, consequences: Consequences) -> Iterator[Root]:
    """Yield each bad tensor that no call wrote, once: at the first call that read it."""
    readers = grouped(
        ((call.rank, operand.content), (call, operand))
        for call, operands in flow.unexplained.items()
        for operand in operands
    )
    for reads in readers.values():
        reads.sort(key=lambda read: read[1].row)
        call, operand = reads[0]
        others = tuple(dict.fromkeys(reader for reader, _ in reads[1:] if reader is not call))
        yield Root(flow, consequences, call, CAME_IN, operand, others)
    for parameter, value in _untouched_parameters(flow):
        if (parameter.rank, value.content) not in readers:
            yield Root(flow, consequences, parameter, CAME_IN, value)


def _untouched_parameters(flow: Flow) -> Iterator[tuple[Call, CallOperand]]:
    for call in flow.calls:
        if is_parameter(call.op_type) and not flow.has_source(call):
            yield from ((call, value) for value in call.bad_outputs)


def _produces_nan(flow: Flow, call: Call) -> bool:
    """Return whether a call has an output with NaN, and its bad inputs, if any, hold only infinity."""
    own = flow.own_writes.get(call, ())
    return (
        _has_other_than_infinity(call)
        and all(_is_infinity(operand) for operand in call.bad_inputs if operand not in own)
        and not flow.arriving.get(call)
        and not any(edge.is_assumed for edge in flow.before.get(call, ()))
        and not is_parameter(call.op_type)
    )


def _is_mask(root: Root, harmless: set[CallKey]) -> bool:
    """Return whether the -Inf of a root is a mask although NaN came of it.

    It is if it came in as data, if an operator made it with which masks are made, if the same operator made a
    harmless one on another rank or in an earlier step, or if only softmax produced NaN from it.
    """
    if root.holds != "-Inf":
        return False
    is_known = root.how == CAME_IN or makes_masks(root.call.op_type) or root.call.key in harmless
    # The logarithm of zero masks nothing: where no call made NaN of it, its gradient did.
    return is_known or (root.leads_to("births") and not root.leads_to("hard births"))


def masks_of(roots: Iterable[Root], harmless: set[CallKey]) -> list[Root]:
    """Return the roots whose -Inf is a mask that became NaN."""
    return [root for root in roots if root.becomes_nan and _is_mask(root, harmless)]


def real_roots(roots: list[Root], harmless: set[CallKey]) -> list[Root]:
    """Return the roots that matter, weak ones last.

    Masks are replaced by the calls that produced NaN from them.

    Args:
        roots: the roots of a step.
        harmless: calls that are known to have made a harmless -Inf.
    """
    masks = masks_of(roots, harmless)
    real = [root for root in roots if root.weight is Weight.REAL and root not in masks]
    if masks:
        real += _births_from(masks, {root.call for root in real})
    return sorted(real, key=lambda root: (root.is_weak, root.order))


def _births_from(masks: list[Root], known: set[Call]) -> list[Root]:
    flow = masks[0].flow
    reached = flow.downstream(call for mask in masks for call in mask.starts)
    births = [call for call in reached if call not in known and _produces_nan(flow, call)]
    return [Root(flow, masks[0].consequences, call, BORN) for call in births]
