"""The label `rank` with a bounded number of values: a process may look after all ranks of a large job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

#: How many ranks of one process have series of their own. A host has ten; ten thousand may share a file
#: system.
MAX_RANKS = 1024
#: The label of all other ranks together.
OTHER = "other"


@dataclass(slots=True)
class RankLabels:
    """Gives the first `limit` ranks a label each, and all others a common one."""

    limit: int = MAX_RANKS
    on_new: list[Callable[[str], object]] = field(default_factory=list)
    """Called with each label before it is first used, so that all of its series begin at zero."""
    _labels: dict[int, str] = field(default_factory=dict)
    _has_other: bool = False

    def __iter__(self) -> Iterator[int]:
        """Yield the ranks that have a label."""
        return iter(self._labels)

    def of(self, rank: int) -> str:
        """Return the label of a rank, always the same one."""
        label = self._labels.get(rank)
        if label is None:
            label = self._labels[rank] = str(rank) if len(self._labels) < self.limit else OTHER
            if not self._has_other:
                self._has_other = label == OTHER
                for create in self.on_new:
                    create(label)
        return label

    def lowest(self, values: Mapping[int, float]) -> dict[str, float]:
        """Return for each label the lowest value of its ranks."""
        lowest: dict[str, float] = {}
        for rank, value in values.items():
            label = self.of(rank)
            lowest[label] = min(lowest.get(label, value), value)
        return lowest

    def highest(self, values: Mapping[int, float]) -> dict[str, float]:
        """Return for each label the highest value of its ranks."""
        negative = self.lowest({rank: -value for rank, value in values.items()})
        return {label: -value for label, value in negative.items()}

    def total(self, values: Mapping[int, float]) -> dict[str, float]:
        """Return for each label the sum over its ranks."""
        total: dict[str, float] = {}
        for rank, value in values.items():
            label = self.of(rank)
            total[label] = total.get(label, 0) + value
        return total
