"""Verdicts on tensors that were put together from pieces: limits of the user, or derived ones."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ingest.questions.compare.compared_tensor import ComparedTensor, Verdict
from ingest.questions.compare.result import ComparedInput, FirstDifference
from ingest.questions.compare.thresholds import Thresholds, is_ignored
from ingest.questions.compare.tolerance import (
    Judgement,
    Measured,
    ToleranceWalk,
    does_spread,
    is_gradient,
    is_of_parameter,
    longest_sum,
    relative_difference,
    usual_gradient,
)
from ingest.questions.placement.decide import Certainty, Decision
from ingest.questions.placement.explain import explain_difference
from ingest.reader.flow.operator_kinds import is_input
from workers.arrays.comparison import Metrics
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.compare import PairComparison

#: How close the ratio of a gradient must be to the number of data-parallel ranks.
_FACTOR = 1e-3


@dataclass(frozen=True, slots=True)
class JudgedTensor:
    """A pair of tensors before the verdict."""

    row: ComparedTensor
    decision: Decision | None
    outcome: PairComparison | None
    key: TensorKey
    shape_b: tuple[int, ...]
    odd: str
    """What shows that its ranks should hold it in another way; "" if nothing does."""
    problem: tuple[str, bool]
    """Why nothing could be read, and whether a store is damaged."""
    note: str = ""
    """What was allowed for."""


@dataclass(slots=True)
class LayoutJudge:
    """Judges the tensors of one step after the other."""

    _walk: ToleranceWalk = field(default_factory=ToleranceWalk)

    def judge(
        self, tensors: Sequence[JudgedTensor], thresholds: Thresholds, *, fixed: bool = False
    ) -> list[ComparedTensor]:
        """Return the rows with their verdicts.

        Args:
            tensors: the pairs of one step, in order of execution.
            thresholds: limits of the user; those that fit a tensor count instead of derived ones.
            fixed: the limits of types count instead of derived ones.
        """
        self._walk.begin_step()
        length = longest_sum([tensor.shape_b for tensor in tensors])
        outcomes = ((_operator(tensor.key), tensor.outcome) for tensor in tensors)
        usual = usual_gradient((name, outcome.metrics if outcome else None) for name, outcome in outcomes)
        inputs = _differences_of_inputs(tensors)
        batches = _cuts_of_batches(tensors)
        judged = [
            self._row(
                _rescaled(tensor, batches),
                thresholds,
                length,
                usual,
                inputs.get(tensor.key.operator, ()),
                fixed=fixed,
            )
            for tensor in tensors
        ]
        return _with_explanations(judged)

    def _row(
        self,
        tensor: JudgedTensor,
        thresholds: Thresholds,
        length: int,
        usual: float,
        inputs: tuple[float, ...],
        *,
        fixed: bool,
    ) -> _Judged:
        row, outcome = tensor.row, tensor.outcome
        names, dtypes = (row.name_a, row.name_b), (row.dtype_a, row.dtype_b)
        limits = thresholds.limits(names, dtypes)
        if is_ignored(limits):
            return _Judged(replace(row, verdict=Verdict.IGNORED))
        if outcome is None or outcome.metrics is None:
            problem, damaged = tensor.problem if outcome is None else (outcome.problem, outcome.damaged)
            reason = problem or (tensor.decision.explanation if tensor.decision else "")
            return _Judged(replace(row, verdict=Verdict.UNKNOWN, reason=reason, damaged=damaged))
        metrics = outcome.metrics
        measured = Measured(
            dtypes,
            metrics,
            length,
            () if is_input(tensor.key.io) else inputs,
            tensor.decision.way.spread if tensor.decision and tensor.decision.way else 0.0,
            is_gradient(_operator(tensor.key)),
            usual,
        )
        judgement = self._walk.judge(measured)
        if fixed or not thresholds.are_empty:
            reason = limits.broken(metrics)
            judgement = judgement._replace(within=not reason, reason=reason)
        return _Judged(
            _with_verdict(tensor, metrics, judgement), judgement, measured.inputs, bool(tensor.odd)
        )

    def first(self, rows: Sequence[ComparedTensor]) -> FirstDifference | None:
        """Return the first tensor that differs by more than what came before explains.

        One that spreads counts before one after which all agree.
        """
        pairs = [row for row in rows if row.name_a and row.name_b]
        different = [row for row in pairs if row.verdict in {Verdict.DIFFERENT, Verdict.SHAPE}]
        if not different:
            return None
        first = _first_of(different, pairs)
        return FirstDifference(first, _inputs_beside(first, rows))


def _first_of(different: Sequence[ComparedTensor], pairs: Sequence[ComparedTensor]) -> ComparedTensor:
    """Return the first tensor that is not explained and spreads; else that is not explained; else any."""
    grown = [row for row in different if row.held is None or not row.held.explained]
    spreading = [row for row in grown if _spreads(row, pairs)]
    return min(spreading or grown or different, key=lambda row: row.number)


def _inputs_beside(first: ComparedTensor, rows: Iterable[ComparedTensor]) -> tuple[ComparedInput, ...]:
    """Return the inputs of the operator of a tensor, as they compared."""
    operator = first.name_a.rpartition(f".{first.io}.")[0]
    return tuple(
        ComparedInput(row.name_a, row.verdict, row.reason)
        for row in rows
        if is_input(row.io) and row.name_a.rpartition(f".{row.io}.")[0] == operator
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A row with its verdict, and what it is explained by."""

    row: ComparedTensor
    judgement: Judgement | None = None
    """None if it was not compared."""
    inputs: tuple[float, ...] = ()
    odd: bool = False


def _with_verdict(tensor: JudgedTensor, metrics: Metrics, judgement: Judgement) -> ComparedTensor:
    row, decision = tensor.row, tensor.decision
    verdict = Verdict.EQUAL if metrics.bit_equal else Verdict.CLOSE if judgement.within else Verdict.DIFFERENT
    reason = judgement.reason
    if verdict is Verdict.DIFFERENT and decision is not None:
        reason = "; ".join(filter(None, (reason, explain_difference(decision))))
    if tensor.odd:
        verdict, reason = Verdict.DIFFERENT, _why_odd(row, tensor.odd)
    if decision is not None and decision.certainty is Certainty.LIKELY and verdict is Verdict.CLOSE:
        verdict = Verdict.UNKNOWN
    if verdict is Verdict.CLOSE and tensor.note:
        reason = tensor.note
    held = row.held and replace(row.held, limit=judgement.limit, times=judgement.times)
    basis = tensor.outcome.basis if tensor.outcome else ""
    return replace(row, verdict=verdict, reason=reason, metrics=metrics, basis=basis, held=held)


def _why_odd(row: ComparedTensor, odd: str) -> str:
    own = row.held.placement if row.held else "?"
    is_unreduced = own.endswith(("partial sum", "mean")) and "replicated" in odd
    cause = ": a reduction is missing, or was not finished when it was dumped" if is_unreduced else ""
    return f"its ranks hold it as {own}, and {odd}{cause}"


def _with_explanations(judged: Sequence[_Judged]) -> list[ComparedTensor]:
    """Return rows of which those that differ say whether what was executed before explains that.

    What differs and does not spread explains nothing.
    """
    rows = [each.row for each in judged]
    explained = []
    largest = 0.0
    for each in judged:
        row, judgement = each.row, each.judgement
        if judgement is not None and row.held is not None:
            before = max(each.inputs) if each.inputs else largest
            is_explained = not each.odd and judgement.is_explained_by(before)
            row = replace(row, held=replace(row.held, explained=is_explained))
            largest = max(largest, _explaining(row, judgement, rows))
        explained.append(row)
    return explained


def _explaining(row: ComparedTensor, judgement: Judgement, rows: Sequence[ComparedTensor]) -> float:
    """Return by how much what is executed after a tensor may differ because of it; 0 for nothing."""
    difference = relative_difference(row.metrics) if row.metrics else 0.0
    is_noise = judgement.within and judgement.times > 1
    explains = judgement.within or _spreads(row, rows)
    return difference if math.isfinite(difference) and explains and not is_noise else 0.0


def _cuts_of_batches(tensors: Iterable[JudgedTensor]) -> frozenset[tuple[int, int]]:
    """Return along which axis, and over how many ranks, batches are cut: those of tokens and labels are."""
    cuts = set()
    for tensor in tensors:
        way = tensor.decision.way if tensor.decision else None
        if way is None or "int" not in tensor.row.dtype_a:
            continue
        cuts |= {(cut.axis, cut.size) for cut in way.a.dimensions if cut.axis is not None}
    return frozenset(cuts)


def _rescaled(tensor: JudgedTensor, batches: frozenset[tuple[int, int]]) -> JudgedTensor:
    """Return a gradient of activations without the factor that data parallelism gives it.

    Each rank averages the loss over its own share of the batch, so what is cut along the batch has gradients
    that are as many times larger. Gradients of parameters are averaged afterwards, and must not have that.
    """
    way = tensor.decision.way if tensor.decision else None
    metrics = tensor.outcome.metrics if tensor.outcome else None
    if way is None or metrics is None or tensor.outcome is None or not is_gradient(_operator(tensor.key)):
        return tensor
    sizes = {cut.size for cut in way.a.dimensions if (cut.axis, cut.size) in batches}
    if not any(math.isclose(way.factor, size, rel_tol=_FACTOR) for size in sizes) or is_of_parameter(
        _operator(tensor.key)
    ):
        return tensor
    size = round(way.factor)
    rest = replace(
        metrics,
        relative_euclidean=way.error_besides_factor,
        rmse=metrics.rmse / max(metrics.relative_euclidean, _FACTOR) * way.error_besides_factor,
    )
    note = f"{size} times B, as each of {size} ranks averages the loss over its share of the batch"
    return replace(tensor, outcome=replace(tensor.outcome, metrics=rest), note=note)


def _operator(key: TensorKey) -> str:
    return f"{key.op_type}.{key.op_name}"


def _spreads(row: ComparedTensor, rows: Sequence[ComparedTensor]) -> bool:
    """Return whether the difference of a row spreads; `rows` are in order of execution."""
    place = bisect_right(rows, row.number, key=lambda other: other.number)
    return does_spread(
        (other.name_a, other.verdict is Verdict.DIFFERENT) for other in islice(rows, place, None)
    )


def _differences_of_inputs(
    tensors: Iterable[JudgedTensor],
) -> dict[tuple[str, str, str, str, int], tuple[float, ...]]:
    inputs: dict[tuple[str, str, str, str, int], tuple[float, ...]] = {}
    for tensor in tensors:
        metrics = tensor.outcome.metrics if tensor.outcome else None
        if metrics is not None and is_input(tensor.key.io):
            inputs[tensor.key.operator] = (
                *inputs.get(tensor.key.operator, ()),
                relative_difference(metrics),
            )
    return inputs
