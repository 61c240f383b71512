"""Which tensors of two runs of the same program differ by more than rounding explains, rank by rank.

The verdict on a tensor follows the fixed limit of its type, or the limits of the user. Besides, the
difference is measured against the derived limit of `tolerance`, which is far lower where little was computed
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ingest.questions.compare.result import ComparedTensor, Verdict
from ingest.questions.compare.tolerance import (
    Measured,
    RoundingBound,
    ToleranceWalk,
    is_gradient,
    longest_sum,
    relative_difference,
    usual_gradient,
)
from ingest.reader.flow.operator_kinds import is_input
from workers.store.blocks import TensorKey

_JUDGED = frozenset({Verdict.EQUAL, Verdict.CLOSE, Verdict.DIFFERENT})


@dataclass(slots=True)
class RankTolerance:
    """The derived limits of one rank of A against one of B, step by step."""

    _walk: ToleranceWalk = field(default_factory=ToleranceWalk)

    def bounded(
        self,
        rows: Sequence[ComparedTensor],
        keys: Sequence[TensorKey],
        equal: Iterable[int],
        shapes: Iterable[tuple[int, ...]],
    ) -> list[ComparedTensor]:
        """Return rows of one step with the bounds of those whose elements were compared, in their order.

        Args:
            rows: the pairs that digests do not decide.
            keys: all tensors of A, by number.
            equal: the numbers of those that digests show to be equal.
            shapes: those of all tensors of the step.
        """
        self._walk.begin_step()
        length = longest_sum(list(set(shapes)))
        usual = usual_gradient((row.name, row.metrics) for row in rows)
        inputs = _input_differences(rows, keys, equal)
        largest = 0.0
        bounds = {}
        for row in sorted(rows, key=lambda row: row.number):
            if row.metrics is None or row.verdict not in _JUDGED:
                continue
            read = () if is_input(row.io) else tuple(inputs.get(keys[row.number].operator, ()))
            measured = Measured(
                (row.dtype_a, row.dtype_b),
                row.metrics,
                length,
                read,
                is_gradient=is_gradient(row.name),
                usual=usual,
            )
            judgement = self._walk.judge(measured)
            is_explained = judgement.within or judgement.is_explained_by(max(read, default=largest))
            bounds[row.number] = RoundingBound(judgement.limit, judgement.times, is_explained)
            largest = max(largest, relative_difference(row.metrics))
        return [replace(row, bound=bounds.get(row.number)) for row in rows]


def _input_differences(
    rows: Sequence[ComparedTensor], keys: Sequence[TensorKey], equal: Iterable[int]
) -> Mapping[tuple[str, str, str, str, int], list[float]]:
    """Return by operator how far its inputs are apart."""
    differences: dict[tuple[str, str, str, str, int], list[float]] = {}
    known = [(row.number, relative_difference(row.metrics)) for row in rows if row.metrics is not None]
    for number, difference in (*known, *((number, 0.0) for number in equal)):
        if is_input(keys[number].io):
            differences.setdefault(keys[number].operator, []).append(difference)
    return differences


def unexplained(rows: Iterable[ComparedTensor]) -> list[ComparedTensor]:
    """Return the tensors that neither rounding nor what was executed before explains."""
    return [row for row in rows if row.bound is not None and not row.bound.explained]
