"""Which differences between ranks of the same program rounding explains, and what was executed before.

Each difference is measured against the derived limit of `tolerance`. Where little was computed before, that
is far lower than the fixed limit of its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ingest.questions.compare.compared_tensor import ComparedTensor
from ingest.questions.compare.tolerance import (
    Judgement,
    Measured,
    RoundingBound,
    ToleranceWalk,
    does_spread,
    is_gradient,
    longest_sum,
    relative_difference,
    usual_gradient,
)
from ingest.reader.flow.operator_kinds import is_input
from workers.arrays.comparison import Metrics
from workers.store.consolidated.blocks import OperatorKey, TensorKey


class MeasuredTensor(NamedTuple):
    """A tensor of A whose elements were compared."""

    number: int
    name: str
    dtypes: tuple[str, str]
    metrics: Metrics


class Bounded(NamedTuple):
    """Whether the difference of a tensor is rounding."""

    judgement: Judgement
    bound: RoundingBound


@dataclass(slots=True)
class RankTolerance:
    """The derived limits of one rank of A against one of B, step by step."""

    _walk: ToleranceWalk = field(default_factory=ToleranceWalk)

    def judge(
        self,
        measured: Iterable[MeasuredTensor],
        keys: Sequence[TensorKey],
        equal: Iterable[int],
        shapes: Iterable[tuple[int, ...]],
        spreads_of: Callable[[Mapping[int, float]], Mapping[int, float]] = lambda _: {},
    ) -> dict[int, Bounded]:
        """Judge one step: the differences that rounding explains, by the number of each measured tensor.

        Spreads only raise limits, so they are asked for where tensors exceed limits without them.

        Args:
            measured: the tensors that digests do not show to be equal.
            keys: all tensors of A, by number.
            equal: the numbers of those that digests show to be equal.
            shapes: those that tensors of the step have.
            spreads_of: returns by how much replicas of tensors differ; is given what rounding alone makes.
        """
        self._walk.begin_step()
        tensors = sorted(measured, key=lambda tensor: tensor.number)
        if not tensors:
            return {}
        length = longest_sum(list(set(shapes)))
        usual = usual_gradient((tensor.name, tensor.metrics) for tensor in tensors)
        inputs = _input_differences(tensors, keys, equal)
        facts = {
            tensor.number: Measured(
                tensor.dtypes,
                tensor.metrics,
                length,
                _read_by(keys[tensor.number], inputs),
                is_gradient=is_gradient(tensor.name),
                usual=usual,
            )
            for tensor in tensors
        }
        before = replace(self._walk)
        judgements = _judged(self._walk, facts)
        beyond = {number: each.own for number, each in judgements.items() if each.may_be_spread}
        if beyond and (spreads := spreads_of(beyond)):
            facts |= {number: facts[number]._replace(spread=spread) for number, spread in spreads.items()}
            self._walk = before
            judgements = _judged(self._walk, facts)
        return _with_explanations(tensors, judgements, keys, facts)


def unexplained(rows: Iterable[ComparedTensor]) -> list[ComparedTensor]:
    """Return the tensors that neither rounding nor what was executed before explains."""
    return [row for row in rows if row.bound is not None and not row.bound.explained]


def _judged(walk: ToleranceWalk, facts: Mapping[int, Measured]) -> dict[int, Judgement]:
    """Return the judgements of the tensors of one step, which are in order of execution."""
    return {number: walk.judge(measured) for number, measured in facts.items()}


def _with_explanations(
    tensors: Sequence[MeasuredTensor],
    judgements: Mapping[int, Judgement],
    keys: Sequence[TensorKey],
    facts: Mapping[int, Measured],
) -> dict[int, Bounded]:
    """Return each judgement with whether differences before explain it.

    What differs and does not spread explains nothing.
    """
    different = {number for number, judgement in judgements.items() if not judgement.within}
    largest = 0.0
    bounds = {}
    for tensor in tensors:
        judgement = judgements[tensor.number]
        read = facts[tensor.number].inputs
        is_explained = judgement.within or judgement.is_explained_by(max(read, default=largest))
        bound = RoundingBound(judgement.limit, judgement.times, is_explained, judgement.spread)
        bounds[tensor.number] = Bounded(judgement, bound)
        difference = relative_difference(tensor.metrics)
        is_noise = judgement.within and judgement.times > 1
        if difference > largest and not is_noise and math.isfinite(difference):
            following = range(tensor.number + 1, len(keys))
            explains = judgement.within or does_spread(
                (keys[number].name, number in different) for number in following
            )
            largest = difference if explains else largest
    return bounds


def _read_by(key: TensorKey, inputs: Mapping[OperatorKey, float]) -> tuple[float, ...]:
    """Return how far the inputs of the operator of an output are apart at most; nothing for an input."""
    if is_input(key.io) or (difference := inputs.get(key.operator)) is None:
        return ()
    return (difference,)


def _input_differences(
    tensors: Iterable[MeasuredTensor], keys: Sequence[TensorKey], equal: Iterable[int]
) -> dict[OperatorKey, float]:
    """Return by operator how far its inputs are apart at most."""
    differences = {key.operator: 0.0 for number in equal if is_input((key := keys[number]).io)}
    for tensor in tensors:
        key = keys[tensor.number]
        if is_input(key.io):
            operator, difference = key.operator, relative_difference(tensor.metrics)
            differences[operator] = max(differences.get(operator, 0.0), difference)
    return differences
