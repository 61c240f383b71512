"""Which ranks must agree on a tensor, judged by what they did agree on.

One store may hold ranks that are replicas of one another in one tensor and not in the next: with tensor
parallelism, all ranks share the weights of normalisation layers, and only some of them share each part of a
matrix; stages of a pipeline share nothing but names. So each tensor is expected to agree within the blocks of
a *partition* of the ranks that have it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.divergence.agreement import ABSENT, AgreementOfRanks, Labels
from ingest.questions.placement.agree import Kind, kind_of
from ingest.questions.placement.slot_kinds import SlotKind
from ingest.reader.mesh import Coordinates
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.unsharded import told_placement
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
    def suspects(self) -> list[tuple[int, ...]]:
        """Each odd rank; without a majority, all ranks that were compared, as one of them is off."""
        return [(place,) for place in self.odd] if self.has_majority else [self.odd]

    @property
    def is_near(self) -> bool:
        """Whether more than half of at least three ranks agree."""
        return len(self.compared) >= 3 and len(self.agreeing) * 2 > len(self.compared)


def judge(pattern: Labels, partition: Partition) -> tuple[BlockVerdict, ...]:
    """Compare the ranks within each block. Blocks with fewer than two ranks to compare are left out."""
    labels = pattern.tolist()
    verdicts = (_judge_block(labels, block) for block in partition)
    return tuple(verdict for verdict in verdicts if len(verdict.compared) > 1)


def _judge_block(labels: list[int], block: tuple[int, ...]) -> BlockVerdict:
    # Digests are compared with digests and statistics with statistics: whichever more ranks have.
    digests = [place for place in block if 0 <= labels[place] < len(labels)]
    reported = [place for place in block if labels[place] >= len(labels)]
    compared = max(digests, reported, key=len)
    by_label: dict[int, list[int]] = {}
    for place in compared:
        by_label.setdefault(labels[place], []).append(place)
    # The sort is stable: of equal ones, the first.
    agreeing, *others = sorted(by_label.values(), key=len, reverse=True) or [[]]
    is_majority = len(agreeing) > max(map(len, others), default=1)
    odd = [place for place in compared if place not in agreeing] if is_majority else compared
    return BlockVerdict(block, tuple(compared), tuple(agreeing), tuple(odd), compared is reported)


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
        # Those at the same place of all axes of the mesh that cut it.
        tensor: _at_same_places([axis for axis, held in told[row].items() if held != Held.REPLICATED], places)
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
#: How many parameters of a kind must agree, at least, and for each that does not, before it is expected to.
_LIKE, _MOST_LIKE = 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class TensorHistory:
    """What tensors that behave alike showed over the steps in which any rank has them."""

    tensors: Sequence[int]
    kind: SlotKind
    patterns: tuple[int, ...]
    """By step: the number of the pattern."""
    tells: tuple[bool, ...]
    """By step: whether agreeing means anything; see `AgreementOfRanks.tells`."""
    universe: tuple[int, ...]
    """The places of the ranks that have it in any step."""
    pieces: Partition | None = None
    """The ranks that hold the same piece of it, as the dump tells; None if it does not."""

    @property
    def ever_tells(self) -> bool:
        """Whether agreeing means anything in any step."""
        return any(self.tells)


def history_of(seen: AgreementOfRanks, tensors: Sequence[int]) -> TensorHistory:
    """Return what tensors showed that behave alike."""
    tensor = tensors[0]
    numbers = seen.content[:, tensor].tolist()
    has = np.any([seen.patterns.all[number] != ABSENT for number in set(numbers)], axis=0)
    return TensorHistory(
        tensors,
        SlotKind(int(seen.kinds[tensor])),
        tuple(numbers),
        tuple(seen.tells[:, tensor].tolist()),
        tuple(np.flatnonzero(has).tolist()),
    )


_Decided: TypeAlias = Iterable[tuple[TensorHistory, Partition | None]]


class Expectations:
    """Decides which ranks must agree on a tensor.

    Agreeing on many different numbers never happens by chance, and disagreeing happens for many reasons. So a
    tensor is expected to agree within the coarsest partition within which it did agree in some step, or
    within which most ranks of each block do. One rank that is off in one step, or in all, changes neither.
    """

    def __init__(
        self,
        seen: AgreementOfRanks,
        steps: Sequence[int],
        given: Partition | None,
        told: Mapping[int, Partition],
        *,
        fed_apart: bool = False,
    ) -> None:
        """Judge by what was seen in these steps.

        Args:
            seen: who holds the same in which step.
            steps: their numbers.
            given: the groups that the user named.
            told: by tensor, the ranks that hold the same piece of it, as far as the dump tells.
            fed_apart: each rank reads batches of its own: parts of one model would be given the same.
        """
        self._seen, self._steps = seen, steps
        self._given, self._told, self._fed_apart = given, told, fed_apart
        self._parameter_of = {gradient: own for own, gradient in seen.gradient_of.items()}
        self._verdicts: dict[tuple[int, Partition], tuple[BlockVerdict, ...]] = {}
        self._candidates: dict[tuple[int, ...], Counter[Partition]] = {}
        """By universe: partitions that tensors showed, and how often."""
        self._usual: dict[tuple[int, ...], Counter[Partition]] = {}
        """By universe: partitions of what optimizers read, and of how many tensors."""
        self._by_operator: dict[OperatorKey, Counter[Partition]] = {}

    def verdicts(self, pattern: int, partition: Partition) -> tuple[BlockVerdict, ...]:
        """Return how the ranks of each block compare. Each pair is judged once."""
        key = (pattern, partition)
        if key not in self._verdicts:
            self._verdicts[key] = judge(self._seen.patterns.all[pattern], partition)
        return self._verdicts[key]

    def decided(
        self, chosen: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[list[int], TensorHistory, Partition | None]]:
        """Yield chosen tensors that behave alike, what they showed, and how they must agree."""
        # Tensors that are not chosen show, too, who is a replica of whom.
        histories = [*self._histories()]
        for history in histories:
            self._learn(history)
        decided = [(history, self._decide(history)) for history in histories]
        for history, expected in decided:
            self._record(history, expected)
        usual, shared, of_kind = (
            self._usual_of_parameters(decided),
            self._sharing_all(decided),
            self._shared_by_kind(decided),
        )
        for history, expected in decided:
            by_expected: dict[Partition | None, list[int]] = {}
            for tensor in filter(chosen.__getitem__, history.tensors):
                key = self._seen.keys[tensor]
                last = expected or self._decide_by_others(history, key.operator)
                if last is None and tensor in self._seen.gradient_of:
                    last = self._decide_by_gradient(tensor)
                    last = last or (self._begun_equal(history) if history.universe in shared else None)
                last = last or self._decide_by_begin(history, tensor, usual.get(history.universe))
                if last is None and tensor in self._parameter_of:
                    last = self._seen.parted_by(tensor, self._parameter_of[tensor], self._steps) or None
                if (kind_of(key, 0), history.universe) in of_kind:
                    last = self._begun_equal(history) or last
                by_expected.setdefault(last, []).append(tensor)
            for last, tensors in by_expected.items():
                yield tensors, history, _of_same_pieces(last, history.pieces)

    def _histories(self) -> Iterator[TensorHistory]:
        """Yield what tensors showed that behave alike and of which the same is told."""
        for together in self._seen.alike():
            history = history_of(self._seen, together)
            by_told: dict[Partition | None, list[int]] = {}
            for tensor in together:
                by_told.setdefault(self._told.get(tensor), []).append(tensor)
            for pieces, tensors in by_told.items():
                yield replace(history, tensors=tensors, pieces=pieces)

    def _learn(self, history: TensorHistory) -> None:
        counts = self._candidates.setdefault(history.universe, Counter())
        for pattern, count in Counter(itertools.compress(history.patterns, history.tells)).items():
            partition = self._shown(pattern, history.universe)
            if partition:
                counts[partition] += count * len(history.tensors)

    def _shown(self, pattern: int, universe: tuple[int, ...]) -> Partition | None:
        """Return the partition that a pattern shows, if it covers all ranks that have a tensor."""
        partition = partition_of(self._seen.patterns.all[pattern])
        covered = sorted(place for block in partition or () for place in block)
        return partition if tuple(covered) == universe else None

    def _decide(self, history: TensorHistory) -> Partition | None:
        """Return how tensors must agree, judged by them alone; None if they do not show it."""
        if len(history.universe) < 2 or history.kind is SlotKind.OPTIMIZER_OUTPUT:
            return None
        is_given = bool(self._given) and history.kind is SlotKind.OPTIMIZER
        tried = self._partitions(history.universe) if history.pieces is None else [history.pieces]
        return next((each for each in tried if is_given or self._is_shown(history, each)), None)

    def _record(self, history: TensorHistory, found: Partition | None) -> None:
        """Record what was decided of what optimizers read: others should be like it."""
        if history.kind is SlotKind.OPTIMIZER and found is not None and history.ever_tells:
            self._usual.setdefault(history.universe, Counter())[found] += len(history.tensors)
            for tensor in history.tensors:
                operator = self._seen.keys[tensor].operator
                self._by_operator.setdefault(operator, Counter())[found] += 1

    def _begun(self, history: TensorHistory) -> Partition | None:
        """Return within which ranks a tensor agreed in the first step in which agreeing means something."""
        first = next(itertools.compress(history.patterns, history.tells), None)
        return None if first is None else self._shown(first, history.universe)

    def _begun_equal(self, history: TensorHistory) -> Partition | None:
        """Return that all ranks must agree on a tensor if they did in the first step, by chance or not."""
        whole = (history.universe,)
        return whole if partition_of(self._seen.patterns.all[history.patterns[0]]) == whole else None

    def _is_trained(self, tensor: int) -> bool:
        """Return whether a tensor is a parameter with a gradient; where none was dumped, a parameter."""
        gradients = self._seen.gradient_of
        return tensor in gradients if gradients else self._seen.keys[tensor].op_type == "Parameter"

    def _decide_by_begin(
        self, history: TensorHistory, tensor: int, most: Partition | None
    ) -> Partition | None:
        """Return ranks that began with the same of a parameter, if most are held so, or ranks are replicas.

        Who is a replica is known, or each rank reads a batch of its own: parts of one model read the same.
        """
        begun = self._begun(history) or ()
        is_begun = most is not None and all(within(begun, block) == (block,) for block in most)
        if history.kind is SlotKind.PARAMETER and is_begun:
            return most
        return self._of_replicas(begun) if self._is_trained(tensor) else None

    def _of_replicas(self, begun: Partition) -> Partition | None:
        if self._given is None:
            return begun if begun and self._fed_apart else None
        return tuple(itertools.chain.from_iterable(within(self._given, block) for block in begun)) or None

    def _decide_by_gradient(self, tensor: int) -> Partition | None:
        """Ranks that step with the same gradient have the same parameter."""
        gradient = self._seen.gradient_of[tensor]
        shared = self._seen.share_gradient(gradient)
        return (shared,) if shared else self._seen.parted(tensor, gradient, self._steps) or None

    def _decide_by_others(self, history: TensorHistory, operator: OperatorKey) -> Partition | None:
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

    def _fits_mostly(self, history: TensorHistory, partition: Partition) -> bool:
        """Return whether all blocks agree, or nearly, in at least half of the steps that can be compared."""
        verdicts = [known for pattern in history.patterns if (known := self.verdicts(pattern, partition))]
        return bool(verdicts) and 2 * sum(map(_all_near, verdicts)) >= len(verdicts)

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
        return any(bool(verdicts) and _all_agree(verdicts) for verdicts in by_pattern)

    def _partitions(self, universe: tuple[int, ...]) -> list[Partition]:
        """Return the partitions of these ranks that are possible, coarsest first."""
        if self._given is not None:
            partition = within(self._given, universe)
            return [partition] if partition else []
        common = self._candidates.get(universe, Counter()).most_common(_MAX_PARTITIONS)
        candidates: set[Partition] = {(universe,), *(partition for partition, _ in common)}
        return sorted(candidates, key=lambda partition: (len(partition), partition))

    def _is_shown(self, history: TensorHistory, partition: Partition) -> bool:
        """Return whether a tensor agrees within a partition often enough to expect it to."""
        compared, agreed, near, agreed_before = self._count(history, partition)
        if history.kind is SlotKind.OTHER:
            return agreed_before >= AGREED_BEFORE
        if near and (near + agreed) * 2 >= compared:
            return True
        # Batches are dumped as parameters, too, and may be the same once, by accident or for a trial.
        enough = min(2, compared / 2) if history.kind is SlotKind.PARAMETER else 1
        return agreed > 0 and agreed >= enough

    def _count(self, history: TensorHistory, partition: Partition) -> tuple[int, int, int, int]:
        """Return in how many steps any block can be compared; all agree; nearly; agree before any does not.

        Only steps count in which agreeing means something.
        """
        compared = agreed = near = 0
        agreed_before: int | None = None
        for pattern, tells in zip(history.patterns, history.tells, strict=True):
            verdicts = self.verdicts(pattern, partition)
            compared += bool(verdicts)
            if _all_agree(verdicts):
                agreed += tells and bool(verdicts)
                continue
            if agreed_before is None:
                agreed_before = agreed
            near += tells and _all_near(verdicts)
        return compared, agreed, near, agreed if agreed_before is None else agreed_before

    def _shared_by_kind(self, decided: _Decided) -> set[tuple[Kind, tuple[int, ...]]]:
        """Return the kinds of parameters that all ranks hold alike in all layers but one or few.

        Norms are held so along tensor parallelism, although its ranks hold different parts of most other
        parameters. With sequence parallelism, they stay equal only if their gradients are added up.
        """
        agreeing, parted = Counter[tuple[Kind, tuple[int, ...]]](), Counter[tuple[Kind, tuple[int, ...]]]()
        for history, _ in decided:
            is_told = history.kind is SlotKind.PARAMETER and history.ever_tells
            if is_told and self._begun_equal(history) is not None:
                is_parted = self.differs(history.patterns, (history.universe,))
                kinds = (kind_of(self._seen.keys[tensor], 0) for tensor in history.tensors)
                (parted if is_parted else agreeing).update((kind, history.universe) for kind in kinds)
        return {kind for kind, count in parted.items() if agreeing[kind] >= max(_LIKE, _MOST_LIKE * count)}

    def _usual_of_parameters(self, decided: _Decided) -> dict[tuple[int, ...], Partition]:
        """Return by universe the partition of more than half of the parameters that have a gradient.

        Where no gradient was dumped, of all parameters.
        """
        gradient_of = self._seen.gradient_of
        counts: dict[tuple[int, ...], Counter[Partition | None]] = {}
        for history, expected in decided:
            is_parameter = history.kind is SlotKind.PARAMETER and not gradient_of
            trained = sum(is_parameter or tensor in gradient_of for tensor in history.tensors)
            counts.setdefault(history.universe, Counter())[expected] += trained
        most = {universe: counter.most_common(1)[0] for universe, counter in counts.items()}
        return {
            universe: partition
            for universe, (partition, count) in most.items()
            if partition is not None and 2 * count > counts[universe].total()
        }

    def _sharing_all(self, decided: _Decided) -> set[tuple[int, ...]]:
        """Return the ranks that hold the same of all parameters with a gradient that can show it at first.

        What begins with ones or zeros shows nothing: pieces of a bias begin so, too, but not those of its
        weight.
        """
        shown: dict[tuple[int, ...], set[Partition | None]] = {}
        for history, expected in decided:
            if history.tells[0] and not self._seen.gradient_of.keys().isdisjoint(history.tensors):
                shown.setdefault(history.universe, set()).add(expected)
        return {universe for universe, partitions in shown.items() if partitions == {(universe,)}}


def _of_same_pieces(expected: Partition | None, pieces: Partition | None) -> Partition | None:
    """Return the blocks of a partition without ranks that hold other pieces, as far as these are told."""
    if expected is None or pieces is None:
        return expected
    return tuple(part for block in pieces for part in within(expected, block))


def _all_agree(verdicts: Iterable[BlockVerdict]) -> bool:
    return all(verdict.agrees for verdict in verdicts)


def _all_near(verdicts: Iterable[BlockVerdict]) -> bool:
    return all(verdict.agrees or verdict.is_near for verdict in verdicts)
