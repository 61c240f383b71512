"""How the ranks of a group compare in one tensor of one step.

One store may hold ranks that are replicas of one another in one tensor and not in the next: with tensor
parallelism, all ranks share the weights of normalisation layers, and only some of them share each part of a
matrix; stages of a pipeline share nothing but names. So each tensor is expected to agree within the blocks of
a *partition* of the ranks that have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ingest.questions.divergence.agreement import Labels

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


def within(partition: Partition, ranks: tuple[int, ...]) -> Partition:
    """Return the blocks of a partition without other ranks than these; blocks of one rank are left out."""
    inside = set(ranks)
    blocks = (tuple(place for place in block if place in inside) for block in partition)
    return tuple(block for block in blocks if len(block) >= 2)
