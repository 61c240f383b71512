"""How something bad spread from its root, where else it may have begun, and what is not certain.

The first overflow that the hardware recorded is told in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ingest.questions.origin.answer import (
    OriginAnswer,
    OriginCollective,
    OriginLater,
    OriginOperator,
    OriginSpread,
    describe_root,
    graph_of,
    list_in_words,
    operator_of,
    sentence,
    source_of,
    tensors_of,
)
from ingest.questions.origin.calls import Call, Flow, bad_numbers, link_calls, operator_before
from ingest.questions.origin.roots import (
    BORN,
    CAME_IN,
    THROUGH,
    Root,
    Suspects,
    Weight,
    masks_of,
    real_roots,
    roots_of,
)
from ingest.reader.choice import named_ranges
from ingest.reader.operator_kinds import CallKey, Content, is_collective, is_container, is_parameter, key_of
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step, overflow_rows
from ingest.reader.text import counted
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import TENSOR_KINDS

_UNREAD = "Nothing was learned from it, for gradients of parameters and what was computed last are finite"
_MEANINGS = {
    Weight.REAL: "An operator looked for it, no parameter has it, and the next step is clean, as where loss "
    "scaling leaves out a step",
    Weight.ABSORBED: "Infinity that went nowhere, for what read it gave finite numbers",
    Weight.HARMLESS: "Harmless, for what read it gave finite numbers",
}


@dataclass
class PassedBy:
    """The roots that a search passed by, because others matter more."""

    _places: dict[tuple[str, str], tuple[set[int], set[int]]] = field(default_factory=dict)
    """The ranks and the steps with a root, by what it means and its description."""

    def add(self, roots: Iterable[Root], step: int | None = None) -> None:
        """Record that the search passed by these roots, or by the same ones in another step."""
        for root in roots:
            meaning, what = _MEANINGS[root.weight], describe_root(root)
            if root.is_unread:
                meaning, later = _UNREAD, len({*root.reached} - {*root.starts})
                what += f", which {counted(later, 'later operator')} of the step gave, too" if later else ""
            ranks, steps = self._places.setdefault((meaning, what), (set(), set()))
            ranks.add(root.call.rank)
            steps.add(root.flow.step if step is None else step)

    def notes(self) -> Iterator[str]:
        """Yield a note for each weight, which lists the roots."""
        for meaning in (*_MEANINGS.values(), _UNREAD):
            texts = [
                f"{what} ({named_ranges('rank', ranks)}, {named_ranges('step', steps)})"
                for (own, what), (ranks, steps) in self._places.items()
                if own == meaning
            ]
            if texts:
                yield f"{meaning}: {list_in_words(texts)}."


def notes_on_root(
    root: Root, others: Sequence[Root], step: Step, suspects: Suspects, harmless: set[CallKey]
) -> Iterator[str]:
    """Yield notes on a root: doubts about it, and what the reader of the answer may want to know.

    Args:
        root: the root that the answer names.
        others: the other roots of its step.
        step: the step of its rank.
        suspects: what may hold what is searched for.
        harmless: calls that made a harmless -Inf.
    """
    call = root.call
    yield from map(sentence, root.doubts())
    if root.how == CAME_IN and not root.trace.has_outputs and (before := operator_before(step, call)):
        yield f"The operator that was dumped before is {before}."
    yield from _on_earlier_steps(root, suspects)
    yield from _on_left_out(root, suspects)
    yield from _on_collective(root, suspects)
    if suspects.cause != "where":
        yield from _on_masks(root, harmless)
    if number := call.key.occurrence:
        yield f"{call.op_name} ran several times in this step: this is its run {number + 1}."
    if root.leads_to("checks"):
        yield "An operator that looks for NaN and Inf has read it, as loss scaling does."
    yield from _on_end(root, others)


def _on_earlier_steps(root: Root, suspects: Suspects) -> Iterator[str]:
    call, snapshot = root.call, suspects.snapshot
    is_in_doubt = root.how == CAME_IN or bool(root.doubts())
    earlier = max((step for step in snapshot.steps if step < call.step), default=None)
    before = None if earlier is None else snapshot.step(call.rank, earlier)
    if before is not None:
        if is_in_doubt and not suspects.may_hold(before):
            yield f"Step {earlier} of this rank has nothing of the kind, not in parameters either."
    elif suspects.cause != "where":
        yield from _on_missing_step(call, earlier, is_in_doubt=is_in_doubt)


def _on_missing_step(call: Call, earlier: int | None, *, is_in_doubt: bool) -> Iterator[str]:
    if earlier is not None:
        yield f"Rank {call.rank} has no step {earlier} in the answer: it may have begun there."
    elif is_in_doubt:
        yield f"Step {call.step} is the first of the answer: it may have begun before."


def _on_left_out(root: Root, suspects: Suspects) -> Iterator[str]:
    """Yield notes on the steps before the root, or ranks of its step, that the answer leaves out."""
    own_step = root.call.step
    left_out = [*suspects.snapshot.left_out, *suspects.damaged]
    earlier = {left.key.step for left in left_out if left.key.step is not None and left.key.step < own_step}
    if earlier:
        yield f"{_clause('step', earlier, 'was')} left out, on one rank at least: it may have begun there."
    if ranks := {left.key.rank for left in left_out if left.key.step == own_step}:
        yield f"{_clause('rank', ranks, 'was')} left out of this step: it may have begun there."


def _on_collective(root: Root, suspects: Suspects) -> Iterator[str]:
    call, snapshot = root.call, suspects.snapshot
    if not is_collective(call.op_type):
        return
    left_out = {left.key.rank for left in snapshot.left_out if left.key.step == call.step}
    absent = left_out | (set(snapshot.ranks) - set(snapshot.of_step(call.step)))
    if absent:
        yield f"{_clause('rank', absent, 'has')} no such step in the answer: it may have come from there."
        return
    traces = root.flow.traces
    silent = {rank for rank in traces if rank != call.rank and call.key not in traces[rank].collectives}
    if silent:
        yield f"{_clause('rank', silent, 'has')} no {call.op_name} in the dump: it may have come from there."
    else:
        yield "It is a collective: a rank that the answer is not about may have put it in."


def _on_masks(root: Root, harmless: set[CallKey]) -> Iterator[str]:
    if root.how != BORN or not root.call.bad_inputs:
        return
    above = root.flow.upstream([root.call])
    for mask in masks_of(roots_of(root.flow), harmless):
        if mask.call is not root.call and not above.isdisjoint(mask.starts):
            yield f"What it read holds -Inf, which is taken for a mask: {describe_root(mask)}."


def _on_end(root: Root, others: Iterable[Root]) -> Iterator[str]:
    if root.weight is Weight.ABSORBED:
        yield "It went nowhere: all that read it gave finite numbers."
    elif root.how == BORN and len(root.reached) == 1 and root.trace.has_inputs:
        if any(other.is_weak and other.call.rank == root.call.rank for other in others):
            yield "No operator has read the same bits: others may have read it in another form."
        else:
            yield "No operator of the dump has read it: an output of the network, or of no use."


def _clause(noun: str, numbers: Collection[int], verb: str) -> str:
    """Begin a sentence about ranks or steps: `Rank 1 has`, `Ranks 1-3 have`."""
    plural = {"was": "were", "has": "have"}[verb]
    return f"{named_ranges(noun, numbers).capitalize()} {verb if len(numbers) == 1 else plural}"


#: A step, and an overflow record of it.
_Record: TypeAlias = tuple[Step, dict[str, Any]]


def first_overflow(snapshot: Snapshot) -> OriginAnswer:
    """Return the operator of the first overflow record: by step, then by the order of its rank.

    Ranks are not ordered among each other, so the records of other ranks in that step are alternatives. Reads
    the indexes of ranks with a record, up to the first step with a record.
    """
    damaged: list[LeftOut] = []
    for step in snapshot.steps:
        records: list[_Record] = []
        for opened in snapshot.of_step(step).values():
            if not _has_records(opened):
                continue
            try:
                records += [(opened, fields) for fields in overflow_rows(opened)]
            except DamagedStore as exc:
                damaged.append(LeftOut.damaged(opened.key, exc.message))
            opened.forget_tables()
        if records:
            return _answer(snapshot, records, (*snapshot.left_out, *damaged))
    return OriginAnswer(None, left_out=(*snapshot.left_out, *damaged))


def _answer(snapshot: Snapshot, records: list[_Record], left_out: tuple[LeftOut, ...]) -> OriginAnswer:
    step, fields = records[0]
    call = _call(step, fields)
    inputs, outputs = tensors_of(step, call, bad_numbers(step)) if call else ((), ())
    source, fused_from = source_of(snapshot, step, call) if call else (None, ())
    return OriginAnswer(
        cause="overflow",
        how="recorded",
        what="overflow",
        rank=step.key.rank,
        step=step.key.step,
        graph=call.key.graph if call else None,
        op_type=fields["op_type"] or None,
        op_name=fields["op_name"] or None,
        occurrence=call.key.occurrence if call else None,
        fused_from=fused_from,
        source=source,
        inputs=inputs,
        outputs=outputs,
        spread=OriginSpread(ranks=(step.key.rank,), steps=tuple(_later(snapshot, step.key.step or 0))),
        alternatives=tuple(map(_alternative, records[1 : 1 + ALTERNATIVES])),
        notes=tuple(_notes(records, call)),
        left_out=left_out,
    )


def _notes(records: list[_Record], call: Call | None) -> list[str]:
    first = records[0][1]
    place = f"stream {first['stream']}, task {first['task']}"
    notes = [f"Recorded by {first['unit']}: {place}; {first['source']} has all of it."]
    if call is None:
        notes.append("The operator that failed was not dumped: task and stream are all that is known of it.")
    if len({step.key.rank for step, _ in records}) > 1:
        notes.append("Records of different ranks are in no order: see the alternatives.")
    return notes


def _later(snapshot: Snapshot, first: int) -> Iterator[OriginLater]:
    for step in snapshot.steps:
        ranks = tuple(rank for rank, opened in snapshot.of_step(step).items() if _has_records(opened))
        if ranks and step > first:
            yield OriginLater(step, ranks)


def _has_records(step: Step) -> bool:
    return bool(step.commit.summary.overflows)


def _alternative(record: _Record) -> OriginOperator:
    step, fields = record
    reason = f"overflow recorded by {fields['unit']}: stream {fields['stream']}, task {fields['task']}"
    of = step.key.rank, step.key.step or 0, "", fields["op_type"], fields["op_name"]
    return OriginOperator(*of, 0, reason)


def _call(step: Step, record: dict[str, Any]) -> Call | None:
    """Return the call that a record is about, by operator, stream and task; None if it was not dumped."""
    if not record["op_name"]:
        return None
    tables = step.tables
    matches = np.isin(tables.label("kind"), TENSOR_KINDS)
    for label in ("op_type", "op_name"):
        matches &= tables.label(label) == record[label]
    for number in ("stream", "task"):
        matches &= tables.number(number) == record[number]
    rows = np.flatnonzero(matches)
    if not len(rows):
        return None
    row = int(rows[0])
    return Call(
        rank=step.key.rank,
        step=int(step.key.step or 0),
        key=key_of(tables, row),
        row=row,
        inputs=0,
        missing_slots=(),
        bad_inputs=(),
        bad_outputs=(),
    )


#: The lengths of the lists in an answer.
_NEXT, _COLLECTIVES, _ENDS, ALTERNATIVES, _THROUGH = 20, 20, 10, 20, 10
#: Ranks of the next step that are read to find out how it came there.
_CARRIED_RANKS = 8


def spread_of(root: Root, suspects: Suspects, harmless: set[CallKey]) -> OriginSpread:
    """Trace how something bad spread in its own step and in later ones. Reads some ranks of the next step.

    Args:
        root: where it began.
        suspects: what may hold what is searched for.
        harmless: calls that made a harmless -Inf.
    """
    flow = root.flow
    operators = [call for call in root.reached if call is not root.call and not is_parameter(call.op_type)]
    near = [call for call in operators if call.rank == root.call.rank][:_NEXT]
    unlinked = _unlinked(root)
    ends = [
        f"rank {call.rank} {call.name_of(output)}"
        for call in root.reached
        for output in flow.unread_outputs(call)
    ]
    return OriginSpread(
        next=tuple(operator_of(call, is_assumed=flow.is_assumed(call)) for call in near),
        operators=len(operators),
        collectives=tuple(_collectives(root)[:_COLLECTIVES]),
        ranks=tuple(sorted({call.rank for call in root.reached})),
        ends=tuple(ends[:_ENDS]),
        unlinked=len(unlinked),
        first_unlinked=next(map(operator_of, unlinked), None),
        steps=tuple(_later_steps(root, suspects, harmless)),
        graph=graph_of(root),
    )


def _unlinked(root: Root) -> list[Call]:
    """Return later operators of its rank that hold it, too, without having read its bits; in order."""
    reached, begun = {*root.reached}, root.call
    later = (call for call in root.flow.calls if call.rank == begun.rank and call.row > begun.row)
    found = [call for call in later if call not in reached and not is_parameter(call.op_type)]
    return sorted(found, key=lambda call: call.row)


def _collectives(root: Root) -> list[OriginCollective]:
    """Return the collectives through which it came to ranks whose own input was clean."""
    reached = dict.fromkeys(root.reached)
    merged: dict[tuple[CallKey, frozenset[int]], tuple[set[int], set[int], bool]] = {}
    flow = root.flow
    crossings = flow.crossings_of(reached)
    # In order; those without one, nearest first.
    for crossing in sorted(crossings, key=lambda each: min(map(flow.order.level_of, each.targets))):
        giving_ranks = {call.rank for call in crossing.sources}
        # One name may stand for several collectives: of other groups of ranks, or of each pair of them.
        key = crossing.key, frozenset(giving_ranks)
        sources, targets, is_assumed = merged.get(key, (set(), set(), True))
        sources |= {call.rank for call in crossing.sources if call in reached}
        targets |= {call.rank for call in crossing.targets} - giving_ranks
        if targets:
            merged[key] = (sources, targets, is_assumed and crossing.is_assumed)
    return [
        OriginCollective(key.op_type, key.op_name, tuple(sorted(sources)), tuple(sorted(targets)), is_assumed)
        for (key, _), (sources, targets, is_assumed) in merged.items()
    ]


def _later_steps(root: Root, suspects: Suspects, harmless: set[CallKey]) -> Iterator[OriginLater]:
    """Yield the later steps in which it is present; of the next step, also how it came there."""
    later = [step for step in suspects.snapshot.steps if step > root.call.step]
    if later:
        step = later[0]
        ranks, certain = suspects.ranks(step), suspects.certain_ranks(step)
        # Totals of commits do not show what fulfils a condition, nor NaN that statistics do not count.
        chosen = certain[:_CARRIED_RANKS] if certain == ranks else ranks
        flow = link_calls(step, suspects.trace(step, chosen))
        roots = roots_of(flow)
        holding = _ranks_that_matter(roots)
        suspects.mark_harmless(step, flow.traces.keys() - holding)
        if present := holding | (set(suspects.worrying_ranks(step)) - set(flow.traces)):
            yield OriginLater(step, tuple(sorted(present)), *_carried(root, roots, harmless))
    for step in later[1:]:
        if worrying := suspects.worrying_ranks(step):
            yield OriginLater(step, tuple(worrying))


def _ranks_that_matter(roots: Iterable[Root]) -> set[int]:
    return {call.rank for root in roots if root.weight is not Weight.HARMLESS for call in root.reached}


def _carried(
    root: Root, later: list[Root], harmless: set[CallKey]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = _names_of_bad(root.flow)
    roots = real_roots(later, harmless)
    came_in = [(each.call.rank, each.operand.content) for each in roots if each.operand is not None]
    through = dict.fromkeys(names[bad] for bad in came_in if bad in names)
    born = [each.call for each in roots if each.how == BORN and not each.is_weak and not each.doubts()]
    again = dict.fromkeys(f"{call.op_type}.{call.op_name}" for call in born)
    return tuple(through)[:_THROUGH], tuple(again)[:_THROUGH]


def _names_of_bad(flow: Flow) -> dict[tuple[int, Content], str]:
    """Return a name for every bad tensor of a step, by rank and content, preferably that of a parameter.

    All bad tensors may carry over: the first one may have gone nowhere, and another one into the parameters.
    """
    names: dict[tuple[int, Content], str] = {}
    for call in flow.calls:
        for output in call.bad_outputs:
            if is_parameter(call.op_type):
                names[call.rank, output.content] = call.op_name
            else:
                names.setdefault((call.rank, output.content), call.name_of(output))
        for operand in flow.own_writes.get(call, ()):
            names.setdefault((call.rank, operand.content), call.name_of(operand))
    return names


def alternatives_to(root: Root, others: Sequence[Root], *, is_condition: bool) -> Iterator[OriginOperator]:
    """Yield the operators of the other roots that do not follow from a root, with the reason.

    Args:
        root: the root that the answer names.
        others: the other roots of its step.
        is_condition: whether a condition was searched for, and not NaN or Inf.
    """
    reached = set(root.reached)
    rows_after = root.flow.order.rows_after(root.call)
    for other in others:
        if other.call in reached or other.call is root.call:
            continue
        what = "it" if is_condition else other.holds or "NaN or Inf"
        began = "came through it" if other.how == THROUGH else "was born in it"
        if other.operand is not None:
            began = f"came in with {other.operand.io} {other.operand.slot}"
        yield operator_of(other.call, f"{what} {began}; {_relation(root, other, rows_after)}")


def _relation(root: Root, other: Root, rows_after: dict[int, int]) -> str:
    call = other.call
    if call in root.flow.twins:
        return "a collective of another name on another rank gave the same: it may follow from that"
    if is_container(call.op_type) and root.call.op_name.startswith(f"{call.op_name}."):
        return "the first is inside it"
    if other.is_weak:
        return "may follow from what was bad before it"
    if call.rank == root.call.rank:
        return "later on the same rank; does not follow from the first as far as the dump shows"
    if call.row > rows_after.get(call.rank, call.row):
        return "on another rank, after a later collective; does not follow from the first"
    return "on another rank, and no collective between them tells which was first"
