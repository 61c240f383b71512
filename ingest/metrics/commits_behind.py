"""How often other ranks have committed since a rank did, by the store. Arithmetic over listings."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ingest.metrics.stragglers import MAX_STEPS_BEHIND


@dataclass(slots=True)
class CommitsBehind:
    """Counts how often the fastest rank commits a higher step after a rank has committed its highest.

    Higher than that of the rank, or than the fastest one had then: ranks may number their steps differently,
    and one with lower numbers is not behind because of that.

    Memory: two numbers for each rank, and `MAX_STEPS_BEHIND` steps.
    """

    _fastest: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_STEPS_BEHIND))
    """The highest committed steps of the run that were seen one after the other, ascending."""
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By rank: its highest step, and the step above which commits of the fastest rank count."""

    def after(self, committed: Mapping[int, int]) -> dict[int, int]:
        """Take in the highest committed step of each rank, and return the counts."""
        fastest = max(committed.values(), default=-1)
        self._see_fastest(fastest)
        for rank, step in committed.items():
            if rank not in self._seen:
                self._seen[rank] = step, step
            elif self._seen[rank][0] != step:
                self._seen[rank] = step, fastest
        return {
            rank: len(self._fastest) - bisect_right(self._fastest, self._seen[rank][1]) for rank in committed
        }

    def _see_fastest(self, step: int) -> None:
        """Remember how far the fastest rank is. What was removed from the store does not count any more."""
        if self._fastest and self._fastest[-1] > step:
            self._seen.clear()
        while self._fastest and self._fastest[-1] > step:
            self._fastest.pop()
        if step >= 0 and (not self._fastest or self._fastest[-1] < step):
            self._fastest.append(step)
