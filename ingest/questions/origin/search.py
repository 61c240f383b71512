"""Search a store for the first operator that gave NaN, Inf, an overflow, or what a condition names."""

from __future__ import annotations

from collections.abc import Sequence

from ingest.questions.origin.answer import (
    OriginAnswer,
    OriginCollective,
    OriginLater,
    OriginOperator,
    OriginSpread,
)
from ingest.questions.origin.calls import Call, CallKey, Mask, bad_numbers, operator_before
from ingest.questions.origin.flow import Flow, trace
from ingest.questions.origin.kinds import is_collective, is_parameter
from ingest.questions.origin.overflow import first_overflow
from ingest.questions.origin.roots import (
    BORN,
    CAME_IN,
    Root,
    Weight,
    masks_of,
    real_roots,
    roots_of,
)
from ingest.questions.origin.scan import RankTraces, in_words
from ingest.questions.origin.wording import (
    beginning,
    came_in,
    how,
    operator_of,
    sentence,
    source_line,
    tensors_of,
)
from ingest.reader.catalog import Catalog, Choice
from ingest.reader.indexed_step import COLUMNS
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import Snapshot, take_snapshot
from ingest.reader.step import Step
from workers.arrays.filter import Filter
from workers.errors import UsageError
from workers.model import StepKey

CAUSES = ("auto", "nan", "inf", "overflow")
_PASSED_BY = {
    Weight.REAL: "An operator looked for it, no parameter has it, and the next step is clean, as where loss "
    "scaling leaves out a step",
    Weight.ABSORBED: "Infinity that went nowhere, for what read it gave finite numbers",
    Weight.HARMLESS: "Harmless, for what read it gave finite numbers",
}
#: What is listed of many.
_NEXT, _COLLECTIVES, _ENDS, _ALTERNATIVES, _THROUGH = 20, 20, 10, 20, 10
#: Ranks of the next step that are looked at to see how it came there.
_CARRIED_RANKS = 8


def origin(
    store: Catalog,
    rank: Choice = None,
    step: Choice = None,
    *,
    cause: str = "auto",
    where: str | None = None,
    include_partial: bool = False,
) -> OriginAnswer:
    """Name the first operator, over all ranks and steps, whose outputs are bad while its inputs were clean.

    First is meant by execution order: by step, by collectives between ranks, and by the order in which
    operators ran on one rank. Clocks of different ranks are not compared. Infinity that others turned into
    finite numbers, such as a mask before softmax, is no more than a note.

    Steps without anything bad are not read; of the others, those up to the first that matters, and the next
    one. Memory: see `RankTraces`.

    Args:
        store: the store.
        rank: one rank, or several; all where None. What came from other ranks is then not seen.
        step: one step, or several; all where None.
        cause: `nan`, `inf`, `overflow` (the first overflow record), or `auto`: NaN or Inf, and where there is
            neither, the first overflow record.
        where: a condition that names what is bad instead, as of `Catalog.tensors`: `"max > 6e4"`.
        include_partial: take steps with quarantined or missing files, too.

    Raises:
        UsageError: a rank or step that was asked for is not in the store, `where` is no condition, or the
            cause is none of these.
    """
    if cause not in CAUSES:
        raise UsageError(f"no cause {cause!r}", hint=f"Causes: {', '.join(CAUSES)}; or a condition.")
    if where is not None and cause != "auto":
        raise UsageError("a cause and a condition exclude each other")
    condition = Filter(where, COLUMNS) if where is not None else None
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    if condition is not None:
        return _Search(snapshot, condition=condition, text=where or "").answer()
    if cause == "overflow":
        return first_overflow(snapshot)
    return _Search(snapshot, cause=cause).answer()


class _Search:
    """One search; what it finds on the way are notes of the answer."""

    def __init__(
        self, snapshot: Snapshot, *, cause: str = "auto", condition: Filter | None = None, text: str = ""
    ) -> None:
        self._snapshot = snapshot
        self._condition = condition
        self._text = text
        self._cause = "where" if condition is not None else cause
        self._scan = RankTraces(snapshot, self._is_bad, self._cause)
        self._harmless: set[CallKey] = set()
        self._passed: dict[tuple[Weight, str], tuple[set[int], set[int]]] = {}
        """What did not matter enough: how much it does, and what; the ranks and steps that have it."""
        self._fallback: tuple[Root, list[Root]] | None = None
        """The first root that may matter, where nothing matters more, and the others of its step."""
        self._unknown = 0

    def _is_bad(self, step: Step) -> Mask:
        if self._condition is not None:
            import numpy as np

            mask = np.zeros(len(step.tables.labels), bool)
            mask[step.rows(self._condition)] = True
            return mask
        return bad_numbers(step, nan=self._cause != "inf", inf=self._cause != "nan")

    def answer(self) -> OriginAnswer:
        """Search step by step."""
        for step in self._scan.steps():
            flow = self._flow(step)
            roots = roots_of(flow)
            if self._condition is not None:
                real = sorted(roots, key=lambda root: (root.is_weak, root.order))
            else:
                self._harmless |= {root.call.key for root in roots if root.weight is Weight.HARMLESS}
                real = real_roots(roots, self._harmless)
            if real and not self._is_skipped_overflow(step, real):
                self._pass_by([root for root in roots if root.weight is not Weight.REAL])
                if self._fallback is not None:
                    self._pass_by([self._fallback[0], *self._fallback[1]])
                return self._answer(real[0], real[1:])
            candidates = real or [root for root in roots if root.weight is Weight.ABSORBED]
            if candidates and self._fallback is None:
                self._fallback = candidates[0], candidates[1:]
            else:
                self._pass_by(candidates)
            self._pass_by([root for root in roots if root.weight is Weight.HARMLESS])
            # Of infinity that operators made, as much may matter in the next step: each one is looked at.
            if not candidates:
                self._scan.note_harmless(step)
        return self._nothing() if self._fallback is None else self._answer(*self._fallback)

    def _pass_by(self, roots: Sequence[Root]) -> None:
        for root in roots:
            ranks, steps = self._passed.setdefault((root.weight, beginning(root)), (set(), set()))
            ranks.add(root.call.rank)
            steps.add(root.flow.step)

    def _flow(self, step: int) -> Flow:
        """Look at the ranks that have something bad; at all others, too, if that tells more."""
        suspects = self._scan.suspects(step)
        looks = self._scan.looks(step, suspects)
        flow = trace(step, looks)
        self._unknown += sum(look.unknown for look in looks.values())
        # Something may have been put into a collective where all that was dumped is clean.
        alone = any(root.how != CAME_IN and is_collective(root.call.op_type) for root in roots_of(flow))
        others = [rank for rank in self._snapshot.of_step(step) if rank not in looks]
        if alone and others:
            looks = dict(sorted({**looks, **self._scan.looks(step, others)}.items()))
            flow = trace(step, looks)
        return flow

    def _is_skipped_overflow(self, step: int, real: Sequence[Root]) -> bool:
        """Whether gradients overflowed and loss scaling left the step out: the next one is clean."""
        if self._condition is not None or not any(root.is_checked for root in real):
            return False
        if any(root.reaches_parameters for root in real):
            return False
        later = [one for one in self._snapshot.steps if one > step]
        return bool(later) and not self._scan.suspects(later[0])

    def _answer(self, root: Root, others: Sequence[Root]) -> OriginAnswer:
        call = root.call
        step = self._snapshot.chosen[StepKey(call.rank, call.step)]
        inputs, outputs = tensors_of(step, call, self._is_bad(step))
        answer = OriginAnswer(
            cause=self._cause_of(root),
            how=root.how,
            what=self._text or root.holds or "NaN or Inf",
            rank=call.rank,
            step=call.step,
            graph=call.key.graph,
            op_type=call.op_type,
            op_name=call.op_name,
            occurrence=call.key.occurrence,
            came_in=came_in(root),
            source=source_line(self._snapshot, step, call),
            inputs=inputs,
            outputs=outputs,
            spread=self._spread(root),
            alternatives=self._alternatives(root, others),
            notes=tuple(dict.fromkeys(self._notes(root, others, step))),
            left_out=(*self._snapshot.left_out, *self._scan.damaged),
        )
        step.forget_tables()
        return answer

    def _notes(self, root: Root, others: Sequence[Root], step: Step) -> list[str]:
        call = root.call
        notes = [sentence(one) for one in root.doubts()]
        if root.how == CAME_IN and not root.flow.looks[call.rank].has_outputs:
            before = operator_before(step, call)
            notes += [f"The operator that was dumped before is {before}."] if before else []
        notes += self._notes_of_time(root)
        notes += self._notes_of_collective(root)
        if self._condition is None:
            notes += _notes_of_mask(root, self._harmless)
        if call.key.occurrence:
            number = call.key.occurrence + 1
            notes.append(f"{call.op_name} ran several times in this step: this is its run {number}.")
        if root.is_checked:
            notes.append("An operator that looks for NaN and Inf has read it, as loss scaling does.")
        if root.weight is Weight.ABSORBED:
            notes.append("It went nowhere: all that read it gave finite numbers.")
        elif root.how == BORN and len(root.reached) == 1 and root.flow.looks[call.rank].has_inputs:
            if any(one.is_weak and one.call.rank == call.rank for one in others):
                notes.append("No operator has read the same bits: others may have read it in another form.")
            else:
                notes.append("No operator of the dump has read it: an output of the network, or of no use.")
        return [*notes, *self._notes_on_the_way()]

    def _cause_of(self, root: Root) -> str:
        if self._condition is not None:
            return "where"
        return "nan" if root.holds in ("NaN", "") else "inf"

    def _nothing(self) -> OriginAnswer:
        if self._cause == "auto" and any(
            one.commit.summary.overflows for one in self._snapshot.chosen.values()
        ):
            found = first_overflow(self._snapshot)
            if found.found:
                return found
        return OriginAnswer(
            None,
            notes=tuple(self._notes_on_the_way()),
            left_out=(*self._snapshot.left_out, *self._scan.damaged),
        )

    def _notes_of_time(self, root: Root) -> list[str]:
        """Say what the steps before tell, and whether there are such that the answer is not about."""
        call, notes = root.call, []
        earlier = [step for step in self._snapshot.steps if step < call.step]
        has_doubts = root.how == CAME_IN or bool(root.doubts())
        if has_doubts and not earlier and self._condition is None:
            notes.append(f"Step {call.step} is the first of the answer: it may have begun before.")
        before = self._snapshot.step(call.rank, earlier[-1]) if earlier else None
        if has_doubts and before is None and earlier and self._condition is None:
            notes.append(
                f"Rank {call.rank} has no step {earlier[-1]} in the answer: it may have begun there."
            )
        if has_doubts and before is not None and not self._scan.suspects_of(before):
            notes.append(f"In step {earlier[-1]} nothing of that was on this rank, parameters included.")
        left = [*self._snapshot.left_out, *self._scan.damaged]
        steps = sorted({one.key.step for one in left if one.key.step is not None})
        if steps and steps[0] < call.step:
            listed = format_ranges(step for step in steps if step < call.step)
            notes.append(f"Step {listed} was left out, on one rank at least: it may have begun there.")
        elif steps and steps[0] == call.step:
            ranks = format_ranges({one.key.rank for one in left if one.key.step == call.step})
            notes.append(f"Rank {ranks} was left out of this step: it may have begun there.")
        return notes

    def _notes_of_collective(self, root: Root) -> list[str]:
        call, flow = root.call, root.flow
        if not is_collective(call.op_type):
            return []
        absent = sorted(
            {left.key.rank for left in self._snapshot.left_out if left.key.step == call.step}
            | (set(self._snapshot.ranks) - set(self._snapshot.of_step(call.step)))
        )
        silent = sorted(
            rank
            for rank, look in flow.looks.items()
            if rank != call.rank and call.key not in look.collectives and not absent
        )
        notes = []
        if absent:
            notes.append(
                f"Rank {format_ranges(absent)} has no such step in the answer: it may have come from there."
            )
        if silent:
            notes.append(
                f"Rank {format_ranges(silent)} has no {call.op_name} in its dump: it may have come from there."
            )
        if not absent and not silent:
            notes.append("It is a collective: a rank that the answer is not about may have put it in.")
        return notes

    def _notes_on_the_way(self) -> list[str]:
        """Say what was found and does not matter, and what was not looked at."""
        notes = []
        for weight, meaning in _PASSED_BY.items():
            texts = [
                f"{what} (rank {format_ranges(ranks)}, step {format_ranges(steps)})"
                for (of, what), (ranks, steps) in self._passed.items()
                if of is weight
            ]
            if texts:
                notes.append(f"{meaning}: {in_words(texts)}.")
        if self._scan.skipped:
            notes.append(
                f"Not looked at: step {format_ranges(self._scan.skipped)}, where as many tensors hold infinity as in "
                "those that were harmless."
            )
        if self._unknown and self._condition is None:
            notes.append(f"Of {self._unknown} tensors it is not known whether they hold NaN or Inf.")
        return notes

    def _alternatives(self, root: Root, others: Sequence[Root]) -> tuple[OriginOperator, ...]:
        reached = set(root.reached)
        after = root.flow.after_of(root.call)
        found = []
        for other in others:
            if other.call in reached or other.call is root.call:
                continue
            call = other.call
            same_rank = call.rank == root.call.rank
            if call in root.flow.twins:
                reason = "a collective of another name on another rank gave the same: it may follow from that"
            elif other.is_weak:
                reason = "may follow from what was bad before it"
            elif same_rank:
                reason = "later on the same rank; does not follow from the first as far as the dump shows"
            elif call.row > after.get(call.rank, call.row):
                reason = "on another rank, after a later collective; does not follow from the first"
            else:
                reason = "on another rank, and no collective between them tells which was first"
            what = "it" if self._condition is not None else other.holds or "NaN or Inf"
            found.append(operator_of(call, f"{what} {how(other)}; {reason}"))
        return tuple(found[:_ALTERNATIVES])

    def _spread(self, root: Root) -> OriginSpread:
        flow, here = root.flow, root.call.rank
        reached = [call for call in root.reached if call is not root.call]
        operators = [one for one in reached if not is_parameter(one.op_type)]
        near = [one for one in operators if one.rank == here][:_NEXT]
        ends = [
            f"rank {call.rank} {call.name_of(output)}"
            for call in root.reached
            for output in flow.ends_of(call)
        ]
        return OriginSpread(
            next=tuple(operator_of(one, is_assumed=_is_assumed(flow, one)) for one in near),
            operators=len(operators),
            collectives=tuple(_collectives(root)[:_COLLECTIVES]),
            ranks=tuple(sorted({call.rank for call in root.reached})),
            ends=tuple(ends[:_ENDS]),
            steps=self._later(root),
        )

    def _later(self, root: Root) -> tuple[OriginLater, ...]:
        """Say which later steps have it; of the next one some ranks are looked at."""
        later = [step for step in self._snapshot.steps if step > root.call.step]
        found = []
        for step in later[:1]:
            suspects, known = self._scan.suspects(step), self._scan.certain(step)
            # The totals of commits do not tell of conditions, nor of statistics that lost what they count.
            some = known[:_CARRIED_RANKS] if known == suspects else suspects
            flow = trace(step, self._scan.looks(step, some))
            holding = {rank for rank, look in flow.looks.items() if look.calls} | set(known)
            if holding:
                found.append(OriginLater(step, tuple(sorted(holding)), *_carried(root, flow, self._harmless)))
        others = ((step, self._scan.certain(step)) for step in later[1:])
        return (*found, *(OriginLater(step, tuple(ranks)) for step, ranks in others if ranks))


def _is_assumed(flow: Flow, call: Call) -> bool:
    edges = [*flow.before.get(call, ()), *flow.arriving.get(call, ())]
    return bool(edges) and all(edge.is_assumed for edge in edges)


def _collectives(root: Root) -> list[OriginCollective]:
    """Return through which collectives it came to ranks whose own input was clean."""
    # In order, nearest first: collectives that nothing orders are told in the order in which it came to them.
    flow, reached = root.flow, dict.fromkeys(root.reached)
    found: dict[tuple[CallKey, frozenset[int]], tuple[set[int], set[int], bool]] = {}
    crossings = dict.fromkeys(crossing for call in reached for crossing in flow.leaving.get(call, ()))
    for crossing in sorted(crossings, key=lambda one: min(flow.level_of(call) for call in one.targets)):
        given = {call.rank for call in crossing.sources}
        # One name may stand for several: of other groups of ranks, or of each pair of them.
        key = crossing.key, frozenset(given)
        sources, targets, assumed = found.get(key, (set(), set(), True))
        sources |= {call.rank for call in crossing.sources if call in reached}
        targets |= {call.rank for call in crossing.targets} - given
        if targets:
            found[key] = (sources, targets, assumed and crossing.is_assumed)
    return [
        OriginCollective(key.op_type, key.op_name, tuple(sorted(sources)), tuple(sorted(targets)), assumed)
        for (key, _), (sources, targets, assumed) in found.items()
    ]


def _notes_of_mask(root: Root, harmless: set[CallKey]) -> list[str]:
    """Say where the -Inf came from that an operator made NaN of."""
    if root.how != BORN or not root.call.bad_inputs:
        return []
    above = root.flow.upstream([root.call])
    masks = masks_of(roots_of(root.flow), harmless)
    return [
        f"What it read holds -Inf, which is taken for a mask: {beginning(one)}."
        for one in masks
        if one.call is not root.call and not above.isdisjoint(one.starts)
    ]


def _carried(root: Root, later: Flow, harmless: set[CallKey]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what carried it over into the next step, and which operators gave it anew."""
    names: dict[tuple[int, tuple[object, ...]], str] = {}
    # Of all that was bad: the first one may have gone nowhere, and another one into the parameters.
    for call in root.flow.calls:
        for output in call.bad_outputs:
            name = call.op_name if is_parameter(call.op_type) else call.name_of(output)
            if is_parameter(call.op_type) or (call.rank, output.content) not in names:
                names[call.rank, output.content] = name
        for operand in root.flow.own_writes.get(call, ()):
            names.setdefault((call.rank, operand.content), call.name_of(operand))
    through: dict[str, None] = {}
    again: dict[str, None] = {}
    for one in real_roots(roots_of(later), harmless):
        if one.operand is not None and (one.call.rank, one.operand.content) in names:
            through[names[one.call.rank, one.operand.content]] = None
        elif one.how == BORN and one.is_certain:
            again[f"{one.call.op_type}.{one.call.op_name}"] = None
    return tuple(through)[:_THROUGH], tuple(again)[:_THROUGH]
