"""Which ranks must agree on a tensor, judged by what they did agree on.

One store may hold ranks that are replicas of one another in one tensor and not in the next: with tensor
parallelism, all ranks share the weights of normalisation layers, and only some of them share each part of a
matrix; stages of a pipeline share nothing but names. So each tensor is expected to agree within the blocks of
a *partition* of the ranks that have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from ingest.questions.divergence.agreement import ABSENT, AgreementOfRanks, Labels
from ingest.questions.placement.slot_kinds import SlotKind
from ingest.reader.mesh import Coordinates
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.unsharded import Told, told_placement
from workers.arrays.sharded.placement import Held
from workers.store.consolidated.blocks import OperatorKey
from workers.store.tables import parse_record

Partition: TypeAlias = tuple[tuple[int, ...], ...]
"""Blocks of ranks, given by their places. The ranks of a block must agree with one another."""


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """How the ranks of one block compare in one tensor of one step."""

    block: tuple[int, ...]
    compared: tuple[int, ...]
    """The ranks that have something to compare."""
    agreeing: tuple[int, ...]
    """The largest set of ranks that agree; if several are as large, the first of them."""
    odd: tuple[int, ...]
    """The ranks that do not agree with `agreeing`; without a majority, all that were compared."""
    by_statistics: bool

    @property
    def agrees(self) -> bool:
        """Whether all ranks that were compared agree."""
        return len(self.agreeing) == len(self.compared)

    @property
    def has_majority(self) -> bool:
        """Whether more ranks agree with one another than any other ranks do."""
        return self.odd != self.compared

    @property
    def is_near(self) -> bool:
        """Whether more than half of at least three ranks agree."""
        return len(self.compared) >= 3 and len(self.agreeing) * 2 > len(self.compared)


def judge(pattern: Labels, partition: Partition) -> tuple[BlockVerdict, ...]:
    """Compare the ranks within each block. Blocks with fewer than two ranks to compare are left out."""
    labels = pattern.tolist()
    verdicts = (_judge_block(labels, block) for block in partition)
    return tuple(verdict for verdict in verdicts if verdict is not None)


def _judge_block(labels: list[int], block: tuple[int, ...]) -> BlockVerdict | None:
    compared, by_statistics = _comparable(labels, block)
    if len(compared) < 2:
        return None
    by_label: dict[int, list[int]] = {}
    for place in compared:
        by_label.setdefault(labels[place], []).append(place)
    agreeing, *others = sorted(by_label.values(), key=len, reverse=True)  # stable: of equal ones, the first
    is_majority = len(agreeing) > max((len(places) for places in others), default=1)
    odd = [place for place in compared if place not in agreeing] if is_majority else compared
    return BlockVerdict(block, tuple(compared), tuple(agreeing), tuple(odd), by_statistics)


def _comparable(labels: list[int], block: tuple[int, ...]) -> tuple[list[int], bool]:
    """Return the ranks that can be compared, and whether their statistics are.

    Digests are compared with digests and statistics with statistics: whichever more ranks have.
    """
    digests = [place for place in block if 0 <= labels[place] < len(labels)]
    reported = [place for place in block if labels[place] >= len(labels)]
    return (reported, True) if len(reported) > len(digests) else (digests, False)


def partition_of(pattern: Labels) -> Partition | None:
    """Return the partition that a pattern shows; None if replicas cannot have it.

    The ranks of one job are laid out on a grid, so all blocks have the same size, and at least two ranks.
    """
    by_label: dict[int, list[int]] = {}
    for place, label in enumerate(pattern.tolist()):
        if label >= 0:
            by_label.setdefault(label, []).append(place)
    sizes = {len(places) for places in by_label.values()}
    if len(sizes) != 1 or min(sizes) < 2:
        return None
    return tuple(tuple(places) for places in by_label.values())


def told_partitions(
    statistics: StepStatistics, seen: AgreementOfRanks, places: Sequence[Coordinates]
) -> dict[int, Partition]:
    """Return by tensor the ranks that hold the same piece of it, where the dump tells of a DTensor.

    Other pieces are not replicas, even if they begin with the same bytes, such as ones or zeros. The first
    step is read again only if the first rank has a DTensor in it.

    Args:
        statistics: reads the first step.
        seen: the tensors.
        places: of all ranks in the mesh, in order; empty where they are not known.
    """
    snapshot = statistics.snapshot
    if not all(places):
        return {}
    rank, opened = min(snapshot.of_step(snapshot.steps[0]).items())
    records = opened.tables.label("record")
    told = {
        row: told_placement(parse_record(records[row]))
        for row in np.flatnonzero(np.char.find(records.astype(str), '"placements"') >= 0).tolist()
    }
    opened.forget_tables()
    if not told:
        return {}
    block = statistics.block(snapshot.steps[0])
    return {
        tensor: _same_pieces(told[row], places)
        for tensor, row in enumerate(block.row[block.ranks.index(rank)].tolist())
        if told.get(row) and seen.kinds[tensor] != SlotKind.OTHER
    }


def stage_partitions(seen: AgreementOfRanks, places: Sequence[Coordinates]) -> dict[int, Partition]:
    """Return by tensor the ranks of each pipeline stage, if no two of other stages ever held the same of it.

    Stages that number their layers from 0 each have other tensors of the same names, of which norms and
    biases begin with the same constants. What stages share, such as tied embeddings, is left out.

    Args:
        seen: the tensors.
        places: of all ranks in the mesh, in order; empty where they are not known.
    """
    stages = [place.get("pp") for place in places]
    if None in stages or len(set(stages)) < 2:
        return {}

    def crosses(labels: Labels) -> bool:
        known = [(label, stage) for label, stage in zip(labels.tolist(), stages, strict=True) if label >= 0]
        return len(set(known)) > len({label for label, _ in known})

    is_shared = (np.array(list(map(crosses, seen.patterns.all)))[seen.content] & seen.tells).any(axis=0)
    return dict.fromkeys(np.flatnonzero(~is_shared).tolist(), _at_same_places(["pp"], places))


def _same_pieces(told: Told, places: Sequence[Coordinates]) -> Partition:
    """Return the ranks that are at the same place of all axes of the mesh that cut a tensor."""
    return _at_same_places([axis for axis, held in told.items() if held != Held.REPLICATED], places)


def _at_same_places(axes: Sequence[str], places: Sequence[Coordinates]) -> Partition:
    """Return the ranks that are at the same place of some axes of the mesh."""
    blocks: dict[tuple[object, ...], list[int]] = {}
    for number, place in enumerate(places):
        blocks.setdefault(tuple(place.get(axis) for axis in axes), []).append(number)
    return tuple(tuple(numbers) for numbers in blocks.values() if len(numbers) > 1)


def within(partition: Partition, ranks: tuple[int, ...]) -> Partition:
    """Return the blocks of a partition without other ranks than these; blocks of one rank are left out."""
    inside = set(ranks)
    blocks = (tuple(place for place in block if place in inside) for block in partition)
    return tuple(block for block in blocks if len(block) >= 2)


#: Steps in which a tensor must have agreed before a difference counts, if nothing else tells that it should.
AGREED_BEFORE = 3
#: The most partitions of the same ranks that are tried.
_MAX_PARTITIONS = 32


@dataclass(frozen=True, slots=True, eq=False)
class TensorHistory:
    """What one tensor, or several that behave alike, showed over the steps in which any rank has it."""

    kind: SlotKind
    patterns: tuple[int, ...]
    """By step: the number of the pattern."""
    tells: tuple[bool, ...]
    """By step: whether agreeing means anything; see `StepPatterns.tells`."""
    universe: tuple[int, ...]
    """The places of the ranks that have it in any step."""

    @property
    def ever_tells(self) -> bool:
        """Whether agreeing means anything in any step."""
        return any(self.tells)


def history_of(seen: AgreementOfRanks, tensor: int) -> TensorHistory:
    """Return what one tensor showed."""
    numbers = seen.content[:, tensor].tolist()
    has = np.any([seen.patterns.all[number] != ABSENT for number in set(numbers)], axis=0)
    return TensorHistory(
        SlotKind(int(seen.kinds[tensor])),
        tuple(numbers),
        tuple(seen.tells[:, tensor].tolist()),
        tuple(np.flatnonzero(has).tolist()),
    )


class Expectations:
    """Decides which ranks must agree on a tensor.

    Agreeing on many different numbers never happens by chance, and disagreeing happens for many reasons. So a
    tensor is expected to agree within the coarsest partition within which it did agree in some step, or
    within which most ranks of each block do. One rank that is off in one step, or in all, changes neither.
    """

    def __init__(self, patterns: Sequence[Labels], given: Partition | None = None) -> None:
        """Judge by these patterns; `given` are the groups that the user named."""
        self._patterns = patterns
        self._given = given
        self._verdicts: dict[tuple[int, Partition], tuple[BlockVerdict, ...]] = {}
        self._candidates: dict[tuple[int, ...], Counter[Partition]] = {}
        """By universe: partitions that tensors showed, and how often."""
        self._usual: dict[tuple[int, ...], Counter[Partition]] = {}
        """By universe: partitions of what optimizers read, and of how many tensors."""
        self._by_operator: dict[OperatorKey, Counter[Partition]] = {}
        """The same by operator."""

    def verdicts(self, pattern: int, partition: Partition) -> tuple[BlockVerdict, ...]:
        """Return how the ranks of each block compare. Each pair is judged once."""
        key = (pattern, partition)
        if key not in self._verdicts:
            self._verdicts[key] = judge(self._patterns[pattern], partition)
        return self._verdicts[key]

    def learn(self, history: TensorHistory, tensors: int) -> None:
        """Record how tensors agreed. Call it for all of them before any is decided on."""
        counts = self._candidates.setdefault(history.universe, Counter())
        telling = Counter(
            pattern for pattern, tells in zip(history.patterns, history.tells, strict=True) if tells
        )
        for pattern, count in telling.items():
            partition = partition_of(self._patterns[pattern])
            if partition and _covers(partition, history.universe):
                counts[partition] += count * tensors

    def record(
        self, history: TensorHistory, partition: Partition | None, operators: Iterable[OperatorKey]
    ) -> None:
        """Record what was decided of tensors, one for each of the operators: others should be like them."""
        if history.kind is not SlotKind.OPTIMIZER or partition is None or not history.ever_tells:
            return
        counts = self._usual.setdefault(history.universe, Counter())
        for operator in operators:
            counts[partition] += 1
            self._by_operator.setdefault(operator, Counter())[partition] += 1

    def decide(self, history: TensorHistory, told: Partition | None = None) -> Partition | None:
        """Return how a tensor must agree, judged by the tensor alone; None if it does not show it.

        Args:
            history: what the tensor showed.
            told: the ranks that hold the same piece of it, as the dump tells; None if it does not.
        """
        if len(history.universe) < 2 or history.kind is SlotKind.OPTIMIZER_OUTPUT:
            return None
        for partition in self._partitions(history.universe) if told is None else [told]:
            if self._given and history.kind is SlotKind.OPTIMIZER:
                return partition
            if self._is_shown(history, partition):
                return partition
        return None

    def begun(self, history: TensorHistory) -> Partition | None:
        """Return within which ranks a tensor agreed in the first step in which agreeing means something."""
        first = next((place for place, tells in enumerate(history.tells) if tells), None)
        if first is None:
            return None
        partition = partition_of(self._patterns[history.patterns[first]])
        return partition if partition and _covers(partition, history.universe) else None

    def begun_equal(self, history: TensorHistory) -> Partition | None:
        """Return that all ranks must agree on a tensor if they did in the first step, by chance or not."""
        whole = (history.universe,)
        return whole if partition_of(self._patterns[history.patterns[0]]) == whole else None

    def decide_by_others(self, history: TensorHistory, operator: OperatorKey) -> Partition | None:
        """Return how a tensor must agree that does not show it itself, judged by what optimizers read.

        Ranks that step with the same gradient must have the same weight and the same learning rate: what one
        operator reads is shared as a whole, or each rank has its part of all of it.
        """
        if history.kind is SlotKind.OPTIMIZER and operator in self._by_operator:
            return self._by_operator[operator].most_common(1)[0][0]
        if history.kind not in {SlotKind.OPTIMIZER, SlotKind.COLLECTIVE} or history.ever_tells:
            return None
        usual = self.usual(history.universe)
        if usual is None or (history.kind is SlotKind.COLLECTIVE and len(usual) > 1):
            return None
        return usual if self._fits_mostly(history, usual) else None

    def usual(self, universe: tuple[int, ...]) -> Partition | None:
        """Return the partition of most tensors that optimizers read; None if there are none."""
        if self._given is not None:
            return within(self._given, universe) or None
        counts = self._usual.get(universe)
        return counts.most_common(1)[0][0] if counts else None

    def differs(self, patterns: Iterable[int], partition: Partition) -> bool:
        """Return whether ranks of a block disagree in any of these patterns."""
        return any(
            not verdict.agrees for pattern in set(patterns) for verdict in self.verdicts(pattern, partition)
        )

    def agreed(self, patterns: Iterable[int], partition: Partition) -> bool:
        """Return whether the ranks of all blocks agree in any of these patterns."""
        by_pattern = (self.verdicts(pattern, partition) for pattern in set(patterns))
        return any(bool(verdicts) and all(verdict.agrees for verdict in verdicts) for verdicts in by_pattern)

    def _partitions(self, universe: tuple[int, ...]) -> list[Partition]:
        """Return the partitions of these ranks that are possible, coarsest first."""
        if self._given is not None:
            partition = within(self._given, universe)
            return [partition] if partition else []
        common = self._candidates.get(universe, Counter()).most_common(_MAX_PARTITIONS)
        candidates: set[Partition] = {(universe,), *(partition for partition, _ in common)}
        return sorted(candidates, key=lambda partition: (len(partition), partition))

    def _fits_mostly(self, history: TensorHistory, partition: Partition) -> bool:
        """Return whether all blocks agree, or nearly, in at least half of the steps that can be compared."""
        comparable = [
            verdicts for pattern in history.patterns if (verdicts := self.verdicts(pattern, partition))
        ]
        fitting = sum(_all_near(verdicts) for verdicts in comparable)
        return bool(comparable) and fitting * 2 >= len(comparable)

    def _is_shown(self, history: TensorHistory, partition: Partition) -> bool:
        """Return whether a tensor agrees within a partition often enough to expect it to."""
        counts = self._count(history, partition)
        if history.kind is SlotKind.OTHER:
            return counts.agreed_before >= AGREED_BEFORE
        if counts.near and (counts.near + counts.agreed) * 2 >= counts.compared:
            return True
        # Batches are dumped as parameters, too, and may be the same once, by accident or for a trial.
        enough = min(2, counts.compared / 2) if history.kind is SlotKind.PARAMETER else 1
        return counts.agreed > 0 and counts.agreed >= enough

    def _count(self, history: TensorHistory, partition: Partition) -> _Agreement:
        compared = agreed = near = 0
        agreed_before: int | None = None
        for pattern, tells in zip(history.patterns, history.tells, strict=True):
            verdicts = self.verdicts(pattern, partition)
            compared += bool(verdicts)
            if all(verdict.agrees for verdict in verdicts):
                agreed += tells and bool(verdicts)
                continue
            if agreed_before is None:
                agreed_before = agreed
            near += tells and _all_near(verdicts)
        return _Agreement(compared, agreed, near, agreed if agreed_before is None else agreed_before)


class _Agreement(NamedTuple):
    """In how many steps a tensor agrees within the blocks of a partition."""

    compared: int
    """Steps in which any block can be compared."""
    agreed: int
    """Steps in which all blocks agree, and agreeing means something."""
    near: int
    """Steps in which they do not all agree, but nearly, and that means something."""
    agreed_before: int
    """Steps counted in `agreed` before the first step in which they do not agree."""


def _covers(partition: Partition, universe: tuple[int, ...]) -> bool:
    return tuple(sorted(place for block in partition for place in block)) == universe


def _all_near(verdicts: Iterable[BlockVerdict]) -> bool:
    return all(verdict.agrees or verdict.is_near for verdict in verdicts)
