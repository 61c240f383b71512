"""In which steps ranks may hold tensors that they should not, judged by digests and means alone.

It applies the rules of `layout` to the patterns of all steps at once, and reads the index of one step of as
few ranks as have all its tensors, for the shapes and for what the dump tells. What it suspects, `layout`
looks at; where it suspects nothing, no more is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.stored_steps import load_step
from ingest.questions.divergence.observation import Observation
from ingest.questions.divergence.patterns import Labels
from ingest.questions.placement.agree import MANY, is_parameter_gradient, kind_of
from ingest.questions.placement.equal_holders import tells_nothing
from ingest.questions.placement.misplaced import parameters_of
from ingest.questions.placement.optimizer_states import (
    is_counter,
    is_state,
    parameter_of_state,
    parameters_by_name,
)
from ingest.questions.placement.repeated_bias import AHEAD, is_bias, is_partial
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from ingest.reader.parallel.told_placement import Told, told_placement
from ingest.reader.snapshot import Snapshot
from ingest.reader.step_statistics import StepStatistics
from workers.store.consolidated.blocks import Block, TensorKey

_LAYER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
#: The roundoff of bfloat16, the coarsest type of outputs.
_ROUNDOFF = 2.0**-8
#: Standard deviations of a mean that count as rounding.
_DEVIATIONS = 4
#: How far a multiple of a bias may be from a whole number.
_CLOSE = 0.1

_Mask = npt.NDArray[np.bool_]


class LayoutScreen:
    """Notes what is constant while steps are read, and then judges all of them."""

    def __init__(self, statistics: StepStatistics) -> None:
        """Begin without a step; `statistics` reads the first one once more."""
        self._statistics = statistics
        self._constant: list[_Mask] = []

    def visit(self, block: Block) -> None:
        """Note which tensors of a step tell nothing, on every rank that has them."""
        self._constant.append(np.asarray((~block.present | tells_nothing(block.statistics)).all(axis=0)))

    def suspects(self, seen: Observation) -> list[int]:
        """Return the steps in which `layout` may find something, in order.

        Raises:
            DamagedStore: the index of a step is damaged.
        """
        snapshot = self._statistics.snapshot
        patterns = [_Pattern.of(labels) for labels in seen.patterns.all]
        holders = np.array([pattern.holders for pattern in patterns])
        if not seen.keys or holders.max() < 2:
            return []
        facts = _facts_of(snapshot, seen)
        rules = _Rules.of(seen.keys, facts, patterns)
        steps = []
        for number, step in enumerate(snapshot.steps):
            constant = np.zeros(len(seen.keys), bool)
            constant[: self._constant[number].size] = self._constant[number]
            if rules.suspect(seen.content[number], constant):
                steps.append(step)
        if steps[:1] != snapshot.steps[:1] and self._repeats_bias(rules, seen):
            steps.insert(0, snapshot.steps[0])
        return steps

    def _repeats_bias(self, rules: _Rules, seen: Observation) -> bool:
        """Return whether the means of the first step leave it possible that every rank adds a bias.

        A program that does so does it in every step.
        """
        if not rules.partial.size:
            return False
        block = self._statistics.block(self._statistics.snapshot.steps[0])
        return any(_may_repeat(sums, block) for sums in rules.sums(block, seen.content[0]))


@dataclass(frozen=True, slots=True)
class _Fact:
    """What an index tells about a tensor."""

    shape: tuple[int, ...]
    told: Told


def _facts_of(snapshot: Snapshot, seen: Observation) -> dict[TensorKey, _Fact]:
    """Collect facts about the step with the most tensors, from the fewest ranks that have all of them."""
    has = np.array([labels != -1 for labels in seen.patterns.all]).reshape(-1, seen.patterns.ranks)
    number = int(np.asarray(has.any(axis=1))[seen.content].sum(axis=1).argmax())
    by_rank = has[seen.content[number]]
    steps = snapshot.of_step(snapshot.steps[number])
    facts: dict[TensorKey, _Fact] = {}
    missed = by_rank.any(axis=1)
    for place, rank in enumerate(snapshot.ranks):
        if rank not in steps or not (missed & by_rank[:, place]).any():
            continue
        missed &= ~by_rank[:, place]
        loaded = load_step(snapshot.store, steps[rank])
        for row, key in enumerate(loaded.keys):
            told = told_placement(loaded.operands.attributes(row))
            facts.setdefault(key, _Fact(loaded.shapes[row], told))
    return facts


class _Pattern(NamedTuple):
    """What the rules of `layout` ask of a pattern."""

    holders: int
    groups: int
    shape: tuple[int, ...]
    """By holder the number of its group, as `EqualHolders.pattern`."""
    labels: Labels

    @classmethod
    def of(cls, labels: Labels) -> _Pattern:
        # Of what has no digest, no two ranks are known to hold the same.
        held = [
            label if 0 <= label < len(labels) else -1 - place
            for place, label in enumerate(labels.tolist())
            if label != -1
        ]
        numbers: dict[int, int] = {}
        shape = tuple(numbers.setdefault(label, len(numbers)) for label in held)
        return cls(len(held), len(numbers), shape, labels)

    @property
    def is_replicated(self) -> bool:
        return self.groups == 1 and self.holders > 1

    @property
    def is_distinct(self) -> bool:
        return self.groups == self.holders > 1


class _Sums(NamedTuple):
    """A partial sum, what may be its reduction, and the biases of its layer, by their places."""

    partial: int
    output: int
    length: int
    """Of the last axis."""
    biases: tuple[int, ...]


def _shape_numbers(patterns: Sequence[_Pattern]) -> npt.NDArray[np.int64]:
    """Return a number for the shape of each pattern."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(pattern.shape, len(numbers)) for pattern in patterns])


def _kind_numbers(keys: Sequence[TensorKey], known: Sequence[_Fact]) -> npt.NDArray[np.int64]:
    """Return a number for the kind of each tensor; -1 for outputs of optimizers."""
    numbers: dict[object, int] = {}
    return np.array(
        [
            -1
            if slot_kind_of(key) is SlotKind.OPTIMIZER_OUTPUT
            else numbers.setdefault(kind_of(key, len(fact.shape)), len(numbers))
            for key, fact in zip(keys, known, strict=True)
        ]
    )


def _is_cut(kinds: Collection[str]) -> bool:
    """Return whether all that is told of a tensor is one way of cutting it."""
    return len(kinds) == 1 and next(iter(kinds)).startswith("shard")


@dataclass(frozen=True, slots=True, eq=False)
class _Rules:
    """The rules of `layout` for the tensors of a run. Arrays have the places of tensors."""

    keys: Sequence[TensorKey]
    facts: Mapping[TensorKey, _Fact]
    patterns: Sequence[_Pattern]
    holders: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    shapes: npt.NDArray[np.int64]
    """(pattern,): a number for each `_Pattern.shape`."""
    kinds: npt.NDArray[np.int64]
    """(tensor,): a number for each kind; -1 for outputs of optimizers."""
    told_whole: _Mask
    told_cut: _Mask
    gradients: npt.NDArray[np.int64]
    """(2, n): gradients and their parameters."""
    states: npt.NDArray[np.int64]
    """(2, n): states of optimizers, and parameters of the same shape."""
    counters: npt.NDArray[np.int64]
    partial: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, keys: Sequence[TensorKey], facts: Mapping[TensorKey, _Fact], patterns: Sequence[_Pattern]
    ) -> _Rules:
        places = {key: place for place, key in enumerate(keys)}
        unknown = _Fact((), {})
        known = [facts.get(key, unknown) for key in keys]
        told = [set(fact.told.values()) for fact in known]
        partial = [
            place
            for place, (key, fact) in enumerate(zip(keys, known, strict=True))
            if is_partial(key, fact.told)
        ]
        return cls(
            keys=keys,
            facts=facts,
            patterns=patterns,
            holders=np.array([pattern.holders for pattern in patterns]),
            groups=np.array([pattern.groups for pattern in patterns]),
            shapes=_shape_numbers(patterns),
            kinds=_kind_numbers(keys, known),
            told_whole=np.array([kinds == {"replicated"} for kinds in told]),
            told_cut=np.array([_is_cut(kinds) for kinds in told]),
            gradients=_columns(_gradients(keys, places)),
            states=_columns(
                (place, parameter)
                for place, parameter in _states(keys)
                if known[place].shape == known[parameter].shape
            ),
            counters=np.array([place for place, key in enumerate(keys) if is_counter(key)], np.int64),
            partial=np.array(partial, np.int64),
        )

    def suspect(self, content: npt.NDArray[np.int32], constant: _Mask) -> bool:
        """Return whether any rule but that of biases may find something in a step.

        Args:
            content: (tensor,): the number of the pattern.
            constant: (tensor,): whether all elements are the same.
        """
        counts = (self.holders[content] > 1) & ~constant
        replicated = counts & (self.groups[content] == 1)
        distinct = self.groups[content] == self.holders[content]
        if (counts & ((self.told_whole & ~replicated) | (self.told_cut & ~distinct))).any():
            return True
        return (
            self._has_odd_gradients(counts, replicated)
            or self._has_odd_states(content, constant)
            or self._has_odd_kinds(content, constant)
        )

    def _has_odd_gradients(self, counts: _Mask, replicated: _Mask) -> bool:
        gradients, parameters = self.gradients
        judged = counts[gradients] & replicated[parameters]
        alike = int((judged & replicated[gradients]).sum())
        differing = int(judged.sum()) - alike
        return bool(differing) and alike >= MANY * differing

    def _has_odd_states(self, content: npt.NDArray[np.int32], constant: _Mask) -> bool:
        if (self.groups[content[self.counters]] > 1).any():
            return True
        states, parameters = self.states
        odd = (self.groups[content[states]] > 1) & ~constant[states]
        pairs = {*zip(content[states[odd]].tolist(), content[parameters[odd]].tolist(), strict=True)}
        return any(
            _splits(self.patterns[state].labels, self.patterns[parameter].labels)
            for state, parameter in pairs
        )

    def _has_odd_kinds(self, content: npt.NDArray[np.int32], constant: _Mask) -> bool:
        shown = (self.holders[content] > 0) & ~constant & (self.kinds >= 0)
        codes = self.kinds[shown] * (int(self.shapes.max()) + 1) + self.shapes[content[shown]]
        _, first, counts = np.unique(codes, return_index=True, return_counts=True)
        kinds = self.kinds[shown][first]
        examples = content[shown][first]
        mixed = np.flatnonzero(np.bincount(kinds) > 1)
        return any(
            self._is_odd_kind(examples[kinds == kind].tolist(), counts[kinds == kind].tolist())
            for kind in mixed.tolist()
        )

    def _is_odd_kind(self, examples: list[int], counts: list[int]) -> bool:
        """Return whether most tensors of a kind are held in one way, and others have fewer different pieces.

        Args:
            examples: the number of a pattern of each way.
            counts: how many tensors have it.
        """
        order = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)
        most, second = counts[order[0]], counts[order[1]]
        if most < MANY or most < 2 * second:
            return False
        usual = self.patterns[examples[order[0]]]
        others = [self.patterns[examples[place]] for place in order[1:]]
        return any(
            (usual.groups == 1 and not other.is_replicated) or usual.groups > other.groups
            for other in others
            if other.holders > 1
        )

    def sums(self, block: Block, content: npt.NDArray[np.int32]) -> Iterator[_Sums]:
        """Yield the partial sums of a step that have an output soon after them."""
        biases = [place for place, key in enumerate(self.keys) if is_bias(key) and key in self.facts]
        order_of: dict[int, npt.NDArray[np.int64]] = {}
        for partial in self.partial.tolist():
            fact = self.facts.get(self.keys[partial])
            pattern = self.patterns[content[partial]]
            if fact is None or not fact.shape or not pattern.is_distinct:
                continue
            first = int(block.present[:, partial].argmax())
            order = order_of.setdefault(first, np.argsort(block.row[first], kind="stable"))
            place = int(np.flatnonzero(order == partial)[0])
            for output in order[place + 1 : place + 1 + AHEAD].tolist():
                other = self.facts.get(self.keys[output])
                if self.patterns[content[output]].is_replicated and other and other.shape == fact.shape:
                    length = fact.shape[-1]
                    fitting = [bias for bias in biases if self.facts[self.keys[bias]].shape == (length,)]
                    yield _Sums(partial, output, length, tuple(_of_layer(self.keys, partial, fitting)))
                    break


def _columns(pairs: Iterator[tuple[int, int]]) -> npt.NDArray[np.int64]:
    return np.array([*pairs], np.int64).reshape(-1, 2).T


def _gradients(keys: Sequence[TensorKey], places: Mapping[TensorKey, int]) -> Iterator[tuple[int, int]]:
    for place, key in enumerate(keys):
        if is_parameter_gradient(key):
            parameter = next((places[other] for other in parameters_of(key) if other in places), None)
            if parameter is not None:
                yield place, parameter


def _states(keys: Sequence[TensorKey]) -> Iterator[tuple[int, int]]:
    parameters = parameters_by_name(keys)
    for place, key in enumerate(keys):
        parameter = parameter_of_state(key, parameters) if is_state(key) else None
        if parameter is not None:
            yield place, parameter


def _splits(state: Labels, parameter: Labels) -> bool:
    """Return whether ranks that hold the same parameter hold different states."""
    both = (state >= 0) & (parameter >= 0)
    pairs = {*zip(parameter[both].tolist(), state[both].tolist(), strict=True)}
    return len(pairs) > len({label for label, _ in pairs})


def _of_layer(keys: Sequence[TensorKey], partial: int, biases: Sequence[int]) -> list[int]:
    """Return the biases of the layer of a partial sum by the numbers in names; all if none has its number."""
    layer = _LAYER.findall(keys[partial].op_name)
    return [bias for bias in biases if _LAYER.findall(keys[bias].op_name) == layer] or [*biases]


def _may_repeat(sums: _Sums, block: Block) -> bool:
    """Return whether the mean of an output leaves it possible that it has a bias several times.

    The mean of the sum is that of all partial sums and as many times that of the bias as it was added.
    """
    mean, norm, count = (block.statistic(name) for name in ("mean", "l2_norm", "count"))
    size = count[block.present[:, sums.output].argmax(), sums.output]
    rest = float(np.nanmax(mean[:, sums.output]) - np.nansum(mean[:, sums.partial]))
    noise = _DEVIATIONS * _ROUNDOFF * float(np.nanmax(norm[:, sums.output])) / float(size)
    if not abs(rest) > noise:
        return False
    own = [float(np.nanmax(mean[:, bias])) for bias in sums.biases]
    if any(abs(rest - once) <= noise for once in own):
        return False
    return any(_is_multiple(rest, once, noise) for once in own if once)


def _is_multiple(rest: float, once: float, noise: float) -> bool:
    """Return whether a mean may be that of a bias two or more times."""
    times, uncertain = rest / once, noise / abs(once)
    return times > 1.5 and (uncertain > _CLOSE or abs(times - round(times)) <= _CLOSE + uncertain)
