"""A cache of statistics over ranks and steps, kept from one moment to the next: only new steps are read.

A statistic is read for all ranks and steps at once, so looking closer costs nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ingest.questions.matrix import rank_values_of
from ingest.reader.cubes.rank_statistics import RankValues
from ingest.reader.snapshot import Snapshot, ask_of_undamaged
from workers.errors import UsageError
from workers.model import MIB

#: What is kept takes about this many bytes at most, of all statistics together.
_MOST_NBYTES = 32 * MIB
#: What a statistic, and each of its steps, takes besides its name and its arrays.
_ENTRY_NBYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class CachedStatistic:
    """A statistic in one step."""

    generation: str
    """Names what the ranks had committed."""
    of_ranks: RankValues

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        return _ENTRY_NBYTES + self.of_ranks.ranks.nbytes + self.of_ranks.values.nbytes


@dataclass(eq=False)
class StatisticsCache:
    """Statistics by name and pattern; the least recently used ones are dropped first."""

    _by_key: OrderedDict[tuple[str, str], dict[int, CachedStatistic]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(
        self,
        snapshot: Callable[[], Snapshot],
        generations: Mapping[int, str],
        pattern: str,
        statistic: str,
    ) -> dict[int, CachedStatistic]:
        """Return a statistic by step. Reads the steps that are not known in their generation.

        Args:
            snapshot: returns all steps, partial ones among them; called only if some have to be read.
            generations: of all steps.
            pattern: a glob for the names of tensors.
            statistic: the name of the statistic.

        Raises:
            UsageError: no tensor of any step matches.
            DamagedStore: no step can be read.
        """
        with self._lock:
            known = dict(self._by_key.get((pattern, statistic), {}))
        by_step = {step: known[step] for step in generations if self._is_current(known, step, generations)}
        due = {step for step in generations if step not in by_step}
        if due:
            try:
                read = ask_of_undamaged(
                    snapshot().only(steps=due), lambda readable: rank_values_of(readable, pattern, statistic)
                )
            except UsageError:
                if not by_step:
                    raise
            else:
                by_step |= {step: CachedStatistic(generations[step], values) for step, values in read.items()}
        with self._lock:
            self._by_key[pattern, statistic] = by_step
            self._by_key.move_to_end((pattern, statistic))
            while len(self._by_key) > 1 and self._nbytes() > _MOST_NBYTES:
                self._by_key.popitem(last=False)
        return by_step

    @staticmethod
    def _is_current(known: Mapping[int, CachedStatistic], step: int, generations: Mapping[int, str]) -> bool:
        return step in known and known[step].generation == generations[step]

    def _nbytes(self) -> int:
        return sum(
            _ENTRY_NBYTES + len(pattern) + sum(kept.nbytes for kept in by_step.values())
            for (pattern, _), by_step in self._by_key.items()
        )
