"""How many steps a rank is behind the others. Arithmetic over listings of a dump, and of a store."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ingest.layouts.base import Listing
from workers.model import StepKey

#: How many steps are remembered, the last ones. No rank is shown further behind.
MAX_STEPS_BEHIND = 1024


@dataclass(slots=True)
class Stragglers:
    """Compares ranks of a dump by what they wrote last, not by the number of their highest step.

    A job that returns to a checkpoint writes lower steps than before, and a job that is killed in the middle
    of a dump leaves ranks one step apart for ever. Neither is a rank that has stopped while others go on.

    Memory: two numbers for each rank, and for each of `MAX_STEPS_BEHIND` steps.
    """

    _last_write: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By rank: when it last wrote, by the clock of the file system, and into which step."""
    _written_at: dict[int, float] = field(default_factory=dict)
    """By step: when any rank last wrote into it."""

    def record_listings(self, listings: Iterable[Listing]) -> None:
        """Take in what a scan has listed. What was seen before counts on when its files are cleaned away."""
        for listing in listings:
            rank, step = listing.key.rank, listing.key.step
            if step is None:
                continue
            at = listing.newest_change
            self._written_at[step] = max(self._written_at.get(step, at), at)
            self._last_write[rank] = max(self._last_write.get(rank, (at, step)), (at, step))
        if len(self._written_at) > MAX_STEPS_BEHIND:
            newest = sorted(self._written_at.items(), key=lambda item: item[1])[-MAX_STEPS_BEHIND:]
            self._written_at = dict(newest)

    def steps_behind(self, present: Collection[StepKey]) -> dict[int, int]:
        """Return by rank how many steps others have written into since, of which it has nothing.

        Args:
            present: the steps of all ranks that the dump has now.
        """
        in_order = sorted(self._written_at.items(), key=lambda item: item[1])
        times = [at for _, at in in_order]
        return {
            rank: sum(
                step != own and StepKey(rank, step) not in present
                for step, _ in in_order[bisect_right(times, at) :]
            )
            for rank, (at, own) in self._last_write.items()
        }


@dataclass(slots=True)
class CommitsBehind:
    """Counts how often the fastest rank of a store commits a higher step after a rank committed its highest.

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
