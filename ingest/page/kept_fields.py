"""Statistics of tensors over ranks and steps, kept from one moment to the next: only new steps are read.

To read a statistic of all tensors of 64 ranks, 100 steps and 5000 tensors takes three seconds. So it is read
for all ranks and steps at once, and looking closer costs nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingest.questions.trend import heatmap
from ingest.reader.dump_store import DumpStore
from workers.errors import UsageError

#: The most numbers that are kept, of all statistics together; each takes 8 bytes.
_MOST = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class StepField:
    """A statistic in one step."""

    generation: str
    """Names what the ranks had committed."""
    ranks: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    """By the same ranks; NaN if it is not known."""


@dataclass(eq=False)
class KeptFields:
    """Statistics by name and pattern; the least recently used ones are dropped first."""

    _kept: OrderedDict[tuple[str, str], dict[int, StepField]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(
        self, store: DumpStore, generations: Mapping[int, str], pattern: str, statistic: str
    ) -> dict[int, StepField]:
        """Return a statistic by step. Reads the steps that are not known in their generation.

        Args:
            store: the store.
            generations: of all its steps.
            pattern: a glob for the names of tensors.
            statistic: the name of the statistic.

        Raises:
            UsageError: no tensor of any step matches.
            DamagedStore: no step can be read.
        """
        with self._lock:
            known = dict(self._kept.get((pattern, statistic), {}))
        by_step = {step: known[step] for step in generations if self._is_current(known, step, generations)}
        due = [step for step in generations if step not in by_step]
        if due:
            try:
                read = heatmap(store, pattern, statistic, step=due, include_partial=True)
            except UsageError:
                if not by_step:
                    raise
            else:
                ranks = np.asarray(read["rank"], np.int64)
                for column, step in enumerate(np.asarray(read["step"]).tolist()):
                    by_step[step] = StepField(generations[step], ranks, np.asarray(read)[:, column])
        with self._lock:
            self._kept[pattern, statistic] = by_step
            self._kept.move_to_end((pattern, statistic))
            while len(self._kept) > 1 and self._size() > _MOST:
                self._kept.popitem(last=False)
        return by_step

    @staticmethod
    def _is_current(known: Mapping[int, StepField], step: int, generations: Mapping[int, str]) -> bool:
        return step in known and known[step].generation == generations[step]

    def _size(self) -> int:
        return sum(kept.values.size for by_step in self._kept.values() for kept in by_step.values())
