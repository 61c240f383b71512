"""The notes of an answer: what is not certain about its root, and what the search passed by, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ingest.questions.origin.calls import Call, operator_before
from ingest.questions.origin.roots import BORN, CAME_IN, Root, Weight, masks_of, roots_of
from ingest.questions.origin.suspects import Suspects
from ingest.questions.origin.wording import describe_root, list_in_words, sentence
from ingest.reader.calls import CallKey
from ingest.reader.choice import named_ranges
from ingest.reader.operator_kinds import is_collective
from ingest.reader.step import Step
from ingest.reader.text import counted

_MEANINGS = {
    Weight.REAL: "An operator looked for it, no parameter has it, and the next step is clean, as where loss "
    "scaling leaves out a step",
    Weight.ABSORBED: "Infinity that went nowhere, for what read it gave finite numbers",
    Weight.HARMLESS: "Harmless, for what read it gave finite numbers",
}


@dataclass
class PassedBy:
    """The roots that a search passed by, because others matter more."""

    _places: dict[tuple[Weight, str], tuple[set[int], set[int]]] = field(default_factory=dict)
    """The ranks and the steps with a root, by its weight and description."""

    def add(self, roots: Iterable[Root], step: int | None = None) -> None:
        """Record that the search passed by these roots, or by the same ones in another step."""
        for root in roots:
            ranks, steps = self._places.setdefault((root.weight, describe_root(root)), (set(), set()))
            ranks.add(root.call.rank)
            steps.add(root.flow.step if step is None else step)

    def notes(self) -> Iterator[str]:
        """Yield a note for each weight, which lists the roots."""
        for weight, meaning in _MEANINGS.items():
            texts = [
                f"{what} ({named_ranges('rank', ranks)}, {named_ranges('step', steps)})"
                for (root_weight, what), (ranks, steps) in self._places.items()
                if root_weight is weight
            ]
            if texts:
                yield f"{meaning}: {list_in_words(texts)}."


def notes_on_search(passed_by: PassedBy, unknown: int) -> list[str]:
    """Return notes on what does not matter, and on what is not known.

    Args:
        passed_by: the roots that the search passed by.
        unknown: the number of tensors that may or may not be bad.
    """
    notes = list(passed_by.notes())
    if unknown:
        they_hold = "it holds" if unknown == 1 else "they hold"
        notes.append(f"Of {counted(unknown, 'tensor')} it is not known whether {they_hold} NaN or Inf.")
    return notes


def notes_on_root(
    root: Root, others: Sequence[Root], step: Step, suspects: Suspects, harmless: set[CallKey]
) -> list[str]:
    """Return notes on a root: doubts about it, and what the reader of the answer may want to know.

    Args:
        root: the root that the answer names.
        others: the other roots of its step.
        step: the step of its rank.
        suspects: what may hold what is searched for.
        harmless: calls that made a harmless -Inf.
    """
    call = root.call
    notes = [sentence(doubt) for doubt in root.doubts()]
    if root.how == CAME_IN and not root.trace.has_outputs and (before := operator_before(step, call)):
        notes.append(f"The operator that was dumped before is {before}.")
    notes += _on_earlier_steps(root, suspects)
    notes += _on_left_out(root, suspects)
    notes += _on_collective(root, suspects)
    if suspects.cause != "where":
        notes += _on_masks(root, harmless)
    if call.key.occurrence:
        number = call.key.occurrence + 1
        notes.append(f"{call.op_name} ran several times in this step: this is its run {number}.")
    if root.leads_to("checks"):
        notes.append("An operator that looks for NaN and Inf has read it, as loss scaling does.")
    notes += _on_end(root, others)
    return notes


def _on_earlier_steps(root: Root, suspects: Suspects) -> Iterator[str]:
    """Yield notes on a root that may have begun in the step before."""
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
    """Yield from which ranks something bad may have come, if the root is a collective."""
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
    """Yield from which masks an operator produced NaN."""
    if root.how != BORN or not root.call.bad_inputs:
        return
    above = root.flow.upstream([root.call])
    for mask in masks_of(roots_of(root.flow), harmless):
        if mask.call is not root.call and not above.isdisjoint(mask.starts):
            yield f"What it read holds -Inf, which is taken for a mask: {describe_root(mask)}."


def _on_end(root: Root, others: Iterable[Root]) -> Iterator[str]:
    """Yield why the root did not spread, if it did not."""
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
