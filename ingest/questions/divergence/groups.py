"""Groups of replicas: which ranks must agree on a tensor.

One store may hold ranks that are replicas of one another in one tensor and not in the next: with tensor
parallelism, all ranks share the weights of normalisation layers, and only some of them each part of a matrix;
stages of a pipeline share nothing but their names. So each tensor is expected to agree within the blocks of a
*partition* of the ranks that have it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ingest.questions.divergence.kinds import SlotKind
from ingest.questions.divergence.patterns import Labels
from workers.errors import UsageError

Partition: TypeAlias = tuple[tuple[int, ...], ...]
"""Blocks of ranks, each by their places, that must agree within each block."""
Operator: TypeAlias = tuple[str, str, str, str, int]
"""`TensorKey.operator`."""

#: Steps in which a tensor must have agreed before it is missed, where nothing but that tells.
AGREED_BEFORE = 3
#: Partitions of the same ranks that are tried.
_MAX_PARTITIONS = 32
_SPAN = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
_MAX_RANKS = 1_000_000


def parse_groups(texts: Iterable[str]) -> list[list[int]]:
    """Return groups of ranks out of texts such as `0-7` and `0,2,4-6`, each in order.

    Raises:
        UsageError: a text is no group, or a rank is in two groups.
    """
    groups: list[list[int]] = []
    for text in texts:
        ranks: set[int] = set()
        for part in text.split(","):
            found = _SPAN.fullmatch(part.strip())
            first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if not first <= last < _MAX_RANKS:
                raise UsageError(f"--group {text!r} is no group of ranks", hint="For example: 0-7, or 0,2,4.")
            ranks |= set(range(first, last + 1))
        groups.append(sorted(ranks))
    return checked_groups(groups)


def checked_groups(groups: Iterable[Iterable[int]]) -> list[list[int]]:
    """Return the groups, each in order.

    Raises:
        UsageError: one has fewer than two ranks, or a rank is in two of them.
    """
    ordered = [sorted(set(group)) for group in groups]
    seen = Counter(rank for group in ordered for rank in group)
    twice = [rank for rank, count in seen.items() if count > 1]
    if twice:
        raise UsageError(f"rank {twice[0]} is in {seen[twice[0]]} groups", hint="A rank has one group.")
    for group in ordered:
        if len(group) < 2:
            raise UsageError(
                f"a group of {len(group)} rank has nothing to agree with", hint="For example: 0-7, or 0,2,4."
            )
    return ordered


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """How the ranks of one block compare in one tensor of one step."""

    block: tuple[int, ...]
    compared: tuple[int, ...]
    """The ranks that have something to compare."""
    most: tuple[int, ...]
    """The largest number of ranks that agree; the first of several that are as many."""
    odd: tuple[int, ...]
    """Those that do not agree with `most`; where there is no majority, all that were compared."""
    by_statistics: bool

    @property
    def agrees(self) -> bool:
        """Whether all that were compared agree."""
        return len(self.most) == len(self.compared)

    @property
    def has_majority(self) -> bool:
        """Whether more ranks agree with one another than any other way."""
        return self.odd != self.compared

    @property
    def is_near(self) -> bool:
        """Whether more than half of at least three ranks agree."""
        return len(self.compared) >= 3 and len(self.most) * 2 > len(self.compared)


def judge(pattern: Labels, partition: Partition) -> tuple[BlockVerdict, ...]:
    """Compare the ranks within each block; blocks in which fewer than two can be compared are not there."""
    ranks = len(pattern)
    labels = pattern.tolist()
    found = []
    for block in partition:
        # Digests are compared with digests and statistics with statistics: whichever more ranks have.
        digests = [place for place in block if 0 <= labels[place] < ranks]
        reported = [place for place in block if labels[place] >= ranks]
        compared = digests if len(digests) >= len(reported) else reported
        if len(compared) < 2:
            continue
        by_label: dict[int, list[int]] = {}
        for place in compared:
            by_label.setdefault(labels[place], []).append(place)
        sizes = sorted((len(places) for places in by_label.values()), reverse=True)
        most = max(by_label.values(), key=len)
        is_clear = sizes[0] >= 2 and (len(sizes) == 1 or sizes[0] > sizes[1])
        odd = [place for place in compared if place not in most] if is_clear else compared
        found.append(BlockVerdict(block, tuple(compared), tuple(most), tuple(odd), compared is not digests))
    return tuple(found)


def partition_of(pattern: Labels) -> Partition | None:
    """Return the partition that a pattern shows, if it is one that replicas can have.

    Ranks of one job are laid out on a grid, so its blocks have all the same size. None where they have not,
    or where each rank is alone.
    """
    by_label: dict[int, list[int]] = {}
    for place, label in enumerate(pattern.tolist()):
        if label >= 0:
            by_label.setdefault(label, []).append(place)
    sizes = {len(places) for places in by_label.values()}
    if len(sizes) != 1 or min(sizes) < 2:
        return None
    return tuple(tuple(places) for places in by_label.values())


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What one tensor, or several that behave alike, showed over the steps in which any rank has it."""

    kind: SlotKind
    patterns: tuple[int, ...]
    tells: tuple[bool, ...]
    universe: tuple[int, ...]
    """The ranks that have it in any step."""


class Expectations:
    """Decides which ranks must agree on a tensor, by what they did agree on.

    To agree on many different numbers never happens by chance, and not to agree happens for many reasons. So
    a tensor is expected to agree within the coarsest partition within which it did agree in some step, or
    within which most ranks of each block do. One rank that is off in one step, or in all, changes neither.
    """

    def __init__(self, patterns: Sequence[Labels], given: Partition | None = None) -> None:
        """Judge by `patterns`; `given` are the groups where they are known."""
        self._patterns = patterns
        self._given = given
        self._verdicts: dict[tuple[int, Partition], tuple[BlockVerdict, ...]] = {}
        self._candidates: dict[tuple[int, ...], Counter[Partition]] = {}
        self._usual: dict[tuple[int, ...], Counter[Partition]] = {}
        self._beside: dict[Operator, Counter[Partition]] = {}

    def verdicts(self, pattern: int, partition: Partition) -> tuple[BlockVerdict, ...]:
        """Return how the ranks of each block compare, from a memory."""
        key = (pattern, partition)
        if key not in self._verdicts:
            self._verdicts[key] = judge(self._patterns[pattern], partition)
        return self._verdicts[key]

    def note(self, history: History, tensors: int) -> None:
        """Take in how tensors agreed, before any of them is decided on."""
        counts = self._candidates.setdefault(history.universe, Counter())
        for pattern, count in Counter(
            one for one, tells in zip(history.patterns, history.tells, strict=True) if tells
        ).items():
            partition = partition_of(self._patterns[pattern])
            if (
                partition
                and tuple(sorted(place for block in partition for place in block)) == history.universe
            ):
                counts[partition] += count * tensors

    def count(self, history: History, partition: Partition | None, operators: Iterable[Operator]) -> None:
        """Take in what was decided of tensors, one for each of the operators: others should be like them."""
        if history.kind is not SlotKind.OPTIMIZER or partition is None or not any(history.tells):
            return
        counts = self._usual.setdefault(history.universe, Counter())
        for operator in operators:
            counts[partition] += 1
            self._beside.setdefault(operator, Counter())[partition] += 1

    def decide(self, history: History) -> Partition | None:
        """Return how a tensor must agree, by what it shows itself; None where it does not show it."""
        if len(history.universe) < 2 or history.kind is SlotKind.OPTIMIZER_OUTPUT:
            return None
        for partition in self._partitions(history.universe):
            if self._given and history.kind is SlotKind.OPTIMIZER:
                return partition
            if self._is_shown(history, partition):
                return partition
        return None

    def decide_by_others(self, history: History, operator: Operator) -> Partition | None:
        """Return how a tensor must agree that does not show it itself, by what optimizers read.

        Where ranks step with the same gradient, they must have the same weight and the same learning rate:
        what one operator reads is shared as a whole, or each rank has its part of all of it.
        """
        beside = self._beside.get(operator) if history.kind is SlotKind.OPTIMIZER else None
        if beside:
            return beside.most_common(1)[0][0]
        usual = self.usual(history.universe)
        if usual is None or history.kind not in (SlotKind.OPTIMIZER, SlotKind.COLLECTIVE):
            return None
        if any(history.tells) or (history.kind is SlotKind.COLLECTIVE and len(usual) > 1):
            return None
        found = [verdicts for one in history.patterns if (verdicts := self.verdicts(one, usual))]
        fits = sum(all(one.agrees or one.is_near for one in verdicts) for verdicts in found)
        return usual if found and fits * 2 >= len(found) else None

    def usual(self, universe: tuple[int, ...]) -> Partition | None:
        """Return the partition of most tensors that optimizers read; None where there are none."""
        if self._given is not None:
            return _within(self._given, universe) or None
        counts = self._usual.get(universe)
        return counts.most_common(1)[0][0] if counts else None

    def _partitions(self, universe: tuple[int, ...]) -> list[Partition]:
        """Return the partitions of these ranks that may be, coarsest first."""
        if self._given is not None:
            partition = _within(self._given, universe)
            return [partition] if partition else []
        common = self._candidates.get(universe, Counter()).most_common(_MAX_PARTITIONS)
        whole: Partition = (universe,)
        return sorted({whole, *(one for one, _ in common)}, key=lambda one: (len(one), one))

    def _is_shown(self, history: History, partition: Partition) -> bool:
        compared = agreed = near = 0
        agreed_before: int | None = None
        for pattern, tells in zip(history.patterns, history.tells, strict=True):
            verdicts = self.verdicts(pattern, partition)
            if not verdicts:
                continue
            compared += 1
            if all(one.agrees for one in verdicts):
                agreed += tells
                continue
            if agreed_before is None:
                agreed_before = agreed
            near += tells and all(one.agrees or one.is_near for one in verdicts)
        if history.kind is SlotKind.OTHER:
            return (agreed if agreed_before is None else agreed_before) >= AGREED_BEFORE
        if near and (near + agreed) * 2 >= compared:
            return True
        # Batches are dumped as parameters, too, and may be the same once, by accident or for a trial.
        enough = min(2, compared / 2) if history.kind is SlotKind.PARAMETER else 1
        return agreed > 0 and agreed >= enough


def _within(partition: Partition, universe: tuple[int, ...]) -> Partition:
    inside = set(universe)
    blocks = (tuple(place for place in block if place in inside) for block in partition)
    return tuple(block for block in blocks if len(block) >= 2)
