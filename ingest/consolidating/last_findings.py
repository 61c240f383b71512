"""What rules found last, from the store: for a consolidator that starts after it was found."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from ingest.consolidating.consolidator import CommitsListed
from ingest.findings.stored import SeriesRead, known_series, read_series
from ingest.steps.events import AnomalousCommitRead
from workers.events import Event, Observer
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore

#: Of how many ranks the last commit is read at most: those with the highest steps.
_RANKS = 1024
#: Of how many steps the findings over several ranks are read: the last ones.
_STEPS = 16


@dataclass(slots=True)
class LastFindings:
    """Reports the findings of the last step of each rank, once; an observer of a consolidator.

    The round that follows reads only what is new. Without this, what was found while no consolidator ran
    would be told by the watcher alone, which may have ended.
    """

    objects: ObjectStore
    notify: Observer
    _is_done: bool = field(default=False, init=False)

    def observe(self, event: Event) -> None:
        """Read the last commits when they are listed for the first time.

        Raises:
            StoreError: the store refused.
        """
        if isinstance(event, CommitsListed) and not self._is_done:
            self._read_commits(event.committed)
            self._read_series()
            self._is_done = True

    def _read_commits(self, committed: Mapping[int, int]) -> None:
        newest = heapq.nlargest(_RANKS, committed, key=lambda rank: committed[rank])
        keys = [StepKey(rank, committed[rank]) for rank in newest]
        for record in commit.read_records(self.objects, keys).values():
            if (event := AnomalousCommitRead.of(record)) is not None:
                self.notify(event)

    def _read_series(self) -> None:
        steps = sorted({step for step, _ in known_series(self.objects)})[-_STEPS:]
        for document in read_series(self.objects, steps, []).values() if steps else ():
            self.notify(SeriesRead(document.step, document.findings, document.evaluated_at_s))
