"""Verdicts on tensors that were put together from pieces: limits of the user, or what `judge` derives."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ingest.questions.compare.compared_tensor import ComparedTensor, Verdict
from ingest.questions.compare.dataflow import Dataflow, gradient_name
from ingest.questions.compare.first_difference import first_unexplained, of_one_side_before, scaled_before
from ingest.questions.compare.judge import Elements, Judge, Judgement, Measured, but_for_factor
from ingest.questions.compare.result import ComparedInput, FirstDifference
from ingest.questions.compare.rounding import RoundingBound
from ingest.questions.compare.thresholds import Thresholds, is_ignored
from ingest.questions.placement.decide import Certainty, Decision, explain_difference
from ingest.reader.flow.operator_kinds import is_input
from ingest.reader.flow.step_parts import StepPart
from workers.arrays.sharded.placement import Held, Placement
from workers.arrays.sharded.placement_search import is_sum
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.compare import PairComparison

#: How close the ratio of a gradient must be to the number of data-parallel ranks.
_FACTOR = 1e-3
_EQUAL = Judgement(Verdict.EQUAL, RoundingBound(0.0, 0.0, explained=True))
#: With which certainty ranks hold parts of a sum.
_SHOWN = frozenset({Certainty.CERTAIN, Certainty.AGREED})


@dataclass(frozen=True, slots=True)
class JudgedTensor:
    """A pair of tensors before the verdict."""

    row: ComparedTensor
    decision: Decision | None
    outcome: PairComparison | None
    key: TensorKey
    shape_b: tuple[int, ...]
    odd: str
    """What the dump tells of how its ranks hold it, if values show otherwise; else ""."""
    problem: tuple[str, bool]
    """Why nothing could be read, and whether a store is damaged."""
    is_same_everywhere: bool = True
    """Whether all ranks of A hold the same bytes."""
    zeros: float = 0.0
    """The share of its elements that are zero."""
    note: str = ""
    """What was allowed for."""
    usual: str = ""
    """How ranks hold others of its kind, if most are held in another way; else ""."""

    @property
    def is_held_alike(self) -> bool:
        """Whether ranks hold it whole, or cut alike on both sides, so that operators on it do the same."""
        way = self.decision.way if self.decision else None
        if way is None:
            return False
        held = {dimension.held for dimension in (*way.a.dimensions, *way.b.dimensions)}
        return way.same_on_both or held <= {Held.REPLICATED}

    @property
    def cuts(self) -> frozenset[Held]:
        """The ways in which it is cut, along whatever axis."""
        way = self.decision.way if self.decision else None
        return frozenset(dimension.held for dimension in way.a.dimensions) if way else frozenset()

    def measured(self) -> Measured | None:
        """Return how far both sides are apart; None if nothing could be read."""
        metrics = self.outcome.metrics if self.outcome else None
        if metrics is None and (self.decision is None or self.decision.way is not None or self.problem[0]):
            return None
        way = self.decision.way if self.decision else None
        return Measured(
            self.row.number,
            (self.row.dtype_a, self.row.dtype_b),
            self.shape_b,
            metrics,
            fits=metrics is not None,
            spread=way.spread if way else 0.0,
            is_alike=self.is_held_alike,
            zeros=self.zeros,
            averaged=_ranks_of_mean(way.a) / _ranks_of_mean(way.b) if way else 1.0,
        )


@dataclass(slots=True)
class LayoutJudge:
    """Judges the tensors of one step after the other."""

    _judge: Judge = field(default_factory=Judge)
    _tensors: dict[int, JudgedTensor] = field(default_factory=dict)
    """Those of the step that was judged last."""
    _flow: Dataflow = field(default_factory=lambda: Dataflow(()))
    _rows: list[ComparedTensor] = field(default_factory=list)
    _parts: dict[str, ComparedTensor] = field(default_factory=dict)
    """The gradients of parameters of the step before of which each rank held its part of a sum."""
    _scaled: ComparedTensor | None = None
    """The first gradient of the step before, if all of them were B's times one factor."""

    def judge(
        self,
        tensors: Sequence[JudgedTensor],
        thresholds: Thresholds,
        flow: Dataflow,
        elements: Elements,
        *,
        fixed: bool = False,
        is_last: bool = False,
        has_other_calls: bool = False,
    ) -> list[ComparedTensor]:
        """Return the rows with their verdicts.

        Args:
            tensors: the pairs of one step, in order of execution.
            thresholds: limits of the user; those that fit a tensor count instead of derived ones.
            flow: what operators of A read.
            elements: reads a tensor of A and its counterpart.
            fixed: the limits of types count instead of derived ones.
            is_last: no step follows whose parameters could show what became of the gradients.
            has_other_calls: calls of both sides hold other samples.
        """
        self._parts = {
            row.name_a: row
            for row in self._rows
            if self._flow.parts[row.number] is StepPart.PARAMETER_GRADIENT
            and _is_certain_sum(self._tensors[row.number])
        }
        batches = _cuts_of_batches(tensors, flow.parts)
        tensors = [
            _rescaled(each, batches) if flow.parts[each.row.number] is StepPart.GRADIENT else each
            for each in tensors
        ]
        self._tensors = {tensor.row.number: tensor for tensor in tensors}
        self._flow = flow
        measured = [known for tensor in tensors if (known := tensor.measured())]
        scaled = next((row for row in self._rows if row.number == self._judge.scaled), None)
        judgements = self._judge.judge(
            measured, flow, elements, is_last=is_last, has_other_calls=has_other_calls
        )
        self._scaled = scaled if self._judge.blames_scale else None
        is_given = fixed or not thresholds.are_empty
        self._rows = [
            _row(tensor, judgements.get(tensor.row.number), thresholds, is_given=is_given)
            for tensor in tensors
        ]
        return self._rows

    def first(self, rows: Sequence[ComparedTensor]) -> FirstDifference | None:
        """Return the first tensor that differs by more than what came before explains.

        If it was computed from parts of a sum on each rank, that sum, which was not reduced, comes first.
        """
        known = {row.number: row for row in rows if row.name_a and row.name_b}
        first = first_unexplained(known.values())
        if first is None:
            return None
        if self._scaled is not None:
            return scaled_before(self._scaled, first)
        if part := self._unreduced_gradient(first, known):
            return FirstDifference(part, ())
        if (missing := of_one_side_before(first, rows, self._flow.in_b)) is not None:
            return FirstDifference(missing, ())
        first = self._held_otherwise(first, known) or self._unreduced(first, known) or first
        return FirstDifference(first, _inputs_beside(first, rows))

    def _unreduced_gradient(
        self, first: ComparedTensor, known: Mapping[int, ComparedTensor]
    ) -> ComparedTensor | None:
        """Return the gradient of which each rank moved its replica by its own part alone; else None."""
        moved = {
            gradient_name(row.name_a): n
            for n, row in known.items()
            if self._flow.parts[n] is StepPart.PARAMETER
        }
        of_parts = [moved[name] for name in self._parts if name in moved]
        part = self._parts.get(gradient_name(first.name_a))
        if part is None or any(self._tensors[n].is_same_everywhere for n in of_parts):
            return None  # gradients are dumped before they are reduced
        why = f"each rank holds a part of the sum, and moved {first.name_a} by that part alone"
        return replace(part, verdict=Verdict.DIFFERENT, reason=why, level="shown")

    def _held_otherwise(
        self, first: ComparedTensor, known: Mapping[int, ComparedTensor]
    ) -> ComparedTensor | None:
        """Return the first tensor that ranks hold unlike others of its kind, if what is held so was read."""
        number = next((n for n in sorted(known) if self._tensors[n].usual), first.number)
        read = self._flow.reads(first.number, known) or []
        if number >= first.number or self._tensors[number].cuts not in (self._tensors[n].cuts for n in read):
            return None
        row, usual = known[number], self._tensors[number].usual
        own = row.held.placement if row.held else "?"
        why = f"held as {own}, in other layers as {usual}; {first.name_a} was computed from it"
        return replace(row, verdict=Verdict.DIFFERENT, reason=why, level="likely")

    def _unreduced(self, first: ComparedTensor, known: dict[int, ComparedTensor]) -> ComparedTensor | None:
        """Return the sum of which each rank read its own part as the whole, if that is why they differ."""
        if self._tensors[first.number].is_same_everywhere:
            return None  # so all ranks have read the same
        earlier = [n for n in known if n < first.number and self._flow.parts[n] is not StepPart.PARAMETER]
        read = self._flow.reads(first.number, known) or earlier[-1:]
        parts = [n for n in read if n in earlier and self._is_part_of_sum(n, first)]
        if not parts:
            return None
        # What was computed from parts is parts of a sum, too, as long as that is linear.
        place = bisect_left(earlier, parts[0])
        while place and self._is_part_of_sum(earlier[place - 1], known[earlier[place]]):
            place -= 1
        part = known[earlier[place]]
        why = f"each rank holds a part of the sum, and computed {first.name_a} from that part alone"
        return replace(part, verdict=Verdict.DIFFERENT, reason=why, level="shown")

    def _is_part_of_sum(self, number: int, following: ComparedTensor) -> bool:
        """Return whether each rank holds a part of what B has whole, and what follows does not reduce it."""
        tensor = self._tensors[number]
        own, other = tensor.key.op_name, self._tensors[following.number].key.op_name
        is_reduction = own.startswith((f"{other}.", f"{other}_")) or other.startswith((f"{own}.", f"{own}_"))
        return _is_certain_sum(tensor) and not is_reduction


def _ranks_of_mean(held: Placement) -> int:
    return math.prod(cut.size for cut in held.dimensions if cut.held is Held.MEAN)


def _is_certain_sum(tensor: JudgedTensor) -> bool:
    """Return whether ranks are known to hold parts of what is whole in B."""
    decision = tensor.decision
    way = decision.way if decision and decision.certainty in _SHOWN else None
    return way is not None and is_sum(way.a) and not way.same_on_both


def _inputs_beside(first: ComparedTensor, rows: Iterable[ComparedTensor]) -> tuple[ComparedInput, ...]:
    """Return the inputs of the operator of a tensor, as they compared."""
    operator = first.name_a.rpartition(f".{first.io}.")[0]
    return tuple(
        ComparedInput(row.name_a, row.verdict, row.reason)
        for row in rows
        if is_input(row.io) and row.name_a.rpartition(f".{row.io}.")[0] == operator
    )


def _row(
    tensor: JudgedTensor, judgement: Judgement | None, thresholds: Thresholds, *, is_given: bool
) -> ComparedTensor:
    """Return the row of a tensor with the verdict: by given limits, or else the judgement."""
    row, outcome = tensor.row, tensor.outcome
    limits = thresholds.limits((row.name_a, row.name_b), (row.dtype_a, row.dtype_b))
    if is_ignored(limits):
        return replace(row, verdict=Verdict.IGNORED)
    known = judgement or _EQUAL
    row = replace(row, bound=judgement and judgement.bound)
    if outcome is not None:
        row = replace(row, metrics=outcome.metrics, basis=outcome.basis)
    if known.verdict is Verdict.NOT_READ and not is_given:
        return replace(row, verdict=Verdict.NOT_READ, reason=known.reason)
    if row.metrics is None:
        return _unknown(tensor, row)
    if is_given:
        reason = limits.broken(row.metrics)
        verdict = Verdict.EQUAL if row.metrics.bit_equal else Verdict.DIFFERENT if reason else Verdict.CLOSE
        return _explained(tensor, replace(row, verdict=verdict, reason=reason))
    return _explained(tensor, replace(row, verdict=known.verdict, reason=known.reason, level=known.level))


def _unknown(tensor: JudgedTensor, row: ComparedTensor) -> ComparedTensor:
    """Return the row of a tensor that could not be compared, with the reason."""
    outcome, decision = tensor.outcome, tensor.decision
    problem, damaged = (outcome.problem, outcome.damaged) if outcome else tensor.problem
    reason = problem or (decision.explanation if decision else "")
    return replace(row, verdict=Verdict.UNKNOWN, reason=reason, damaged=damaged)


def _explained(tensor: JudgedTensor, row: ComparedTensor) -> ComparedTensor:
    """Return a row with what the way in which ranks hold the tensor adds to its verdict."""
    decision = tensor.decision
    is_likely = decision is not None and decision.certainty is Certainty.LIKELY
    if tensor.odd:
        own = row.held.placement if row.held else "?"
        bound = row.bound and replace(row.bound, explained=False)
        reason = f"its ranks hold it as {own}, and {tensor.odd}"
        return replace(row, verdict=Verdict.DIFFERENT, reason=reason, bound=bound)
    if row.verdict is Verdict.DIFFERENT and decision is not None:
        return replace(row, reason="; ".join(filter(None, (row.reason, explain_difference(decision)))))
    if row.verdict is not Verdict.CLOSE:
        return row
    return (
        replace(row, verdict=Verdict.UNKNOWN) if is_likely else replace(row, reason=tensor.note or row.reason)
    )


def _cuts_of_batches(
    tensors: Sequence[JudgedTensor], parts: Sequence[StepPart]
) -> frozenset[tuple[int, int]]:
    """Return along which axis, and over how many ranks, batches are cut: as tokens and what comes first."""
    cuts = set()
    first = next((tensor for tensor in tensors if not parts[tensor.row.number].is_of_parameter), None)
    for tensor in tensors:
        way = tensor.decision.way if tensor.decision else None
        if way is not None and (tensor is first or "int" in tensor.row.dtype_a):
            cuts |= {(cut.axis, cut.size) for cut in way.a.dimensions if cut.axis is not None}
    return frozenset(cuts)


def _rescaled(tensor: JudgedTensor, batches: frozenset[tuple[int, int]]) -> JudgedTensor:
    """Return a gradient of activations without the factor that data parallelism gives it.

    Each rank averages the loss over its own share of the batch, so what is cut along the batch has gradients
    that are as many times larger. Gradients of parameters are averaged afterwards, and must not have that.
    """
    way, outcome = tensor.decision and tensor.decision.way, tensor.outcome
    if not way or outcome is None or outcome.metrics is None:
        return tensor
    sizes = {cut.size for cut in way.a.dimensions if (cut.axis, cut.size) in batches}
    if any(cut.held is Held.MEAN and cut.size in sizes for cut in way.a.dimensions):
        return replace(tensor, odd="")  # parts of a sum that is as many times larger look like a mean
    if not any(math.isclose(way.factor, size, rel_tol=_FACTOR) for size in sizes):
        return tensor
    size = round(way.factor)
    note = f"{size} times B, as each of {size} ranks averages the loss over its share of the batch"
    metrics = replace(but_for_factor(outcome.metrics), norm_ratio=1.0)
    return replace(tensor, outcome=replace(outcome, metrics=metrics), note=note)
