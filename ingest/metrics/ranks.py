"""The label `rank`, with a bound, for one process may look after all ranks of a large job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Ranks of one process that have series of their own. A host has ten; ten thousand may share a file system.
MAX_RANKS = 1024
#: What the label says for all the others together.
OTHER = "other"


@dataclass(slots=True)
class RankLabels:
    """Gives the first `limit` ranks a label of their own, and all others one together."""

    limit: int = MAX_RANKS
    _labels: dict[int, str] = field(default_factory=dict)

    def __contains__(self, rank: int) -> bool:
        return rank in self._labels

    def of(self, rank: int) -> str:
        """Return the label of a rank, always the same one."""
        label = self._labels.get(rank)
        if label is None:
            label = self._labels[rank] = str(rank) if len(self._labels) < self.limit else OTHER
        return label

    def lowest(self, values: Mapping[int, float]) -> dict[str, float]:
        """Return for each label the lowest value of its ranks."""
        found: dict[str, float] = {}
        for rank, value in values.items():
            label = self.of(rank)
            found[label] = min(found.get(label, value), value)
        return found

    def total(self, values: Mapping[int, float]) -> dict[str, float]:
        """Return for each label the sum over its ranks."""
        found: dict[str, float] = {}
        for rank, value in values.items():
            label = self.of(rank)
            found[label] = found.get(label, 0) + value
        return found
