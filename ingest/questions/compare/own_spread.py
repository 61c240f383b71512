"""How far results of one run are apart that should be the same: its replicas, and its repeated steps.

A run whose reductions add up in any order differs from another as its own replicas do. These are read only
where a verdict hangs on them, because that takes the indexes of other steps, and elements.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

from ingest.questions.compare.runner import PairRunner, batched
from ingest.questions.compare.sources import Source
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.tolerance import MAX_SPREAD, relative_difference
from ingest.reader.flow.operator_kinds import is_input
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey
from workers.tasks.compare import Pair

_NORM = FIELDS.index("l2_norm")
#: The most replicas of a tensor that are compared with it.
_MOST = 3
#: Steps whose indexes are kept: the ranks that come next have the same replicas.
_KEPT = 8
#: What few replicas are apart may be this many times less than what two runs are.
_UNCERTAIN = 2.0
#: The place of B.
_REFERENCE = 1
_MISSING = -1


class _TensorOfStep(NamedTuple):
    """A tensor of a step."""

    step: StepTensors
    number: int


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A step of a run, and where its tensors are."""

    step: StepTensors
    numbers: dict[TensorKey, int]


@dataclass(frozen=True, slots=True)
class _PossibleReplicas:
    """A tensor of one run, first, and those that may be replicas of it."""

    number: int
    """That of the tensor of A that is judged."""
    base: float
    is_reference: bool
    """Whether they are of B."""
    places: Sequence[_TensorOfStep]


@dataclass(slots=True)
class OwnSpread:
    """Measures how far replicas within A, and within B, are apart."""

    runs: tuple[Source, Source] | None = None
    """A and B; None: replicas do not count."""
    _loaded: OrderedDict[tuple[int, StepKey], _Loaded | None] = field(default_factory=OrderedDict)

    def measure(
        self,
        a: StepTensors,
        b: StepTensors,
        number_in_b: Mapping[int, int],
        runner: PairRunner,
        bases: Mapping[int, float],
    ) -> dict[int, float]:
        """Return the relative difference between replicas of tensors, by their numbers in A.

        Replicas are the same tensor of other ranks, if it is nearly equal, and of the step before or after,
        if its operator read the same bytes there. Tensors without replicas, and whose replicas are equal,
        are left out. Memory: the indexes of `_KEPT` steps.

        Args:
            a: the step of A.
            b: that of B.
            number_in_b: the number in B of each tensor of A.
            runner: where replicas are compared.
            bases: which tensors, with the relative difference that rounding alone makes.

        Raises:
            StoreError: a store cannot be reached.
            DumpError: a file of a dump changed, or cannot be read.
        """
        groups = []
        for number, base in bases.items() if self.runs else ():
            for side, place in enumerate((_TensorOfStep(a, number), _TensorOfStep(b, number_in_b[number]))):
                places = [place, *self._candidates(place, base, side)]
                if len(places) > 1:
                    groups.append(_PossibleReplicas(number, base, side == _REFERENCE, places))
        spreads: dict[int, list[_Spread]] = {}
        for group, distances in zip(groups, _distances(groups, runner), strict=True):
            spreads.setdefault(group.number, []).append(_spread(group, distances))
        return {number: spread for number, known in spreads.items() if (spread := _agreed(known))}

    def _candidates(self, place: _TensorOfStep, base: float, side: int) -> list[_TensorOfStep]:
        """Return the tensors that may be replicas of a tensor, those with the nearest norm first."""
        step, number = place
        norm = float(step.statistics[number, _NORM])
        near: list[tuple[float, int, _TensorOfStep]] = []
        for other in self._neighbours(step.key, side):
            candidate = other.numbers.get(step.keys[number])
            if candidate is None or not _are_alike(place, _TensorOfStep(other.step, candidate)):
                continue
            if other.step.key.rank == step.key.rank and not _read_the_same(place, other):
                continue
            away = abs(float(other.step.statistics[candidate, _NORM]) - norm) / (norm or 1.0)
            if not away > MAX_SPREAD * base:  # NaN if norms are not known
                near.append(
                    (0.0 if math.isnan(away) else away, len(near), _TensorOfStep(other.step, candidate))
                )
        return [candidate for _, _, candidate in sorted(near)[:_MOST]]

    def _neighbours(self, key: StepKey, side: int) -> Iterator[_Loaded]:
        """Yield the next ranks along each axis of a mesh of powers of two, and the steps before and after."""
        if key.step is None or self.runs is None:
            return
        keys = self.runs[side].keys
        ranks = [other.rank for other in keys if other.step == key.step]
        next_ranks = {key.rank ^ 1 << bit for bit in range(max(ranks, default=0).bit_length())}
        steps = sorted(other.step for other in keys if other.rank == key.rank and other.step is not None)
        at = bisect_left(steps, key.step)
        next_steps = {*steps[max(at - 1, 0) : at], *steps[at + 1 : at + 2]}
        for other in keys:
            is_replica = other.step == key.step and other.rank in next_ranks
            if is_replica or (other.rank == key.rank and other.step in next_steps):
                loaded = self._load(other, side)
                if loaded is not None:
                    yield loaded

    def _load(self, key: StepKey, side: int) -> _Loaded | None:
        """Return a step; None if its index is damaged, which is reported where it is compared itself."""
        place = side, key
        if place in self._loaded:
            self._loaded.move_to_end(place)
            return self._loaded[place]
        assert self.runs is not None  # noqa: S101  (for mypy)
        loaded: _Loaded | None = None
        with suppress(DamagedStore):
            step = self.runs[side].load(key)
            loaded = _Loaded(step, {known: number for number, known in enumerate(step.keys)})
        self._loaded[place] = loaded
        if len(self._loaded) > _KEPT:
            self._loaded.popitem(last=False)
        return loaded


class _Spread(NamedTuple):
    """What the replicas of a tensor in one run show; None if there are none."""

    independent: float | None
    """Without what A computed for the tensor itself."""
    own: float | None


def _spread(group: _PossibleReplicas, distances: dict[tuple[int, int], float]) -> _Spread:
    """Return the relative difference between the replicas of one run."""
    within = MAX_SPREAD * group.base
    near = [other for (first, other), distance in distances.items() if not first and distance <= within]
    of_first = [distances[0, other] for other in near]
    of_others = [distances[pair] for pair in combinations(sorted(near), 2)]
    if group.is_reference:
        return _Spread(max([*of_first, *of_others], default=None), None)
    return _Spread(max(of_others, default=None), max(of_first, default=None))


def _agreed(known: Iterable[_Spread]) -> float:
    """Return the spread of a tensor; 0 without replicas.

    A rank that drifts away from its replicas must not raise its own limit: what it is apart from them counts
    only if nothing else shows a spread, neither two other replicas nor those of the reference.
    """
    known = list(known)
    independent = [spread.independent for spread in known if spread.independent is not None]
    own = [spread.own for spread in known if spread.own is not None]
    return _UNCERTAIN * max(independent or own, default=0.0)


def _distances(groups: Sequence[_PossibleReplicas], runner: PairRunner) -> list[dict[tuple[int, int], float]]:
    """Return how far any two tensors of each group are apart, by their places in it."""
    answers: list[dict[tuple[int, int], float]] = [{} for _ in groups]
    asked, jobs = [], []
    for group, answer in zip(groups, answers, strict=True):
        operands = [place.step.operand(place.number) for place in group.places]
        digests = [place.step.digests[place.number] for place in group.places]
        for pair in combinations(range(len(operands)), 2):
            first, second = pair
            if digests[first].any() and np.array_equal(digests[first], digests[second]):
                answer[pair] = 0.0
                continue
            asked.append((answer, pair))
            jobs.append(Pair(operands[first], operands[second]))
    outcomes = chain.from_iterable(runner.run(batched(jobs, runner.parts)))
    for (answer, pair), outcome in zip(asked, outcomes, strict=True):
        answer[pair] = relative_difference(outcome.metrics) if outcome.metrics else math.inf
    return answers


def _are_alike(place: _TensorOfStep, other: _TensorOfStep) -> bool:
    """Return whether two tensors have the same type and shape, and the second one can be read."""
    step, number = other
    kinds = [(each.dtypes[at], each.shapes[at], each.meanings[at]) for each, at in (place, other)]
    return kinds[0] == kinds[1] and bool(step.dumped[number]) and number not in step.removed


def _read_the_same(place: _TensorOfStep, other: _Loaded) -> bool:
    """Return whether digests show that the operator of an output read the same bytes in another step."""
    step, number = place
    key = step.keys[number]
    if is_input(key.io):
        return False
    inputs = [
        (digest, other.numbers.get(known, _MISSING))
        for known, digest in zip(step.keys, step.digests, strict=True)
        if known.operator == key.operator and is_input(known.io)
    ]
    return bool(inputs) and all(
        digest.any() and at != _MISSING and np.array_equal(digest, other.step.digests[at])
        for digest, at in inputs
    )
