"""What the store already holds of the steps of a dump: the store alone keeps the state of the service."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ingest.reader.verifying import ExpectedObjects
from ingest.steps.difference import CommittedFiles
from ingest.steps.events import AnomalousCommitRead
from ingest.steps.state import StepState, StepTable
from workers.events import Observer
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.commit import Commit, Tombstone, read_tombstones
from workers.store.objects import ObjectStore
from workers.store.packed.pool import without_pool
from workers.store.step import StoredStep

#: Commits that are fetched before the clock is looked at: at least, and at most.
_FEWEST, _MOST = 16, 256
#: Up to this many new steps of a rank are not asked for: the store is asked again before they are offered.
_FEW = 16


@dataclass(slots=True)
class Committed:
    """Asks the store for commits, and records them in the table. Bounded by the steps of the dump."""

    objects: ObjectStore
    table: StepTable
    take_removed: bool = False
    """Whether a step that was removed on purpose counts as one that is missing."""
    notify: Observer = lambda _: None
    """Called with the commits that were there before, if they count anomalies."""
    at_look_s: float = 0.25
    """How long `expect` waits for commits to be fetched, in seconds; the others are fetched by `check`."""
    _listed: set[int] = field(default_factory=set)
    """Ranks that were listed in the store."""
    _to_check: deque[StepState] = field(default_factory=deque)
    """Steps that are still to be asked for, in order."""
    _tombstones: dict[int, dict[int, list[Tombstone]]] = field(default_factory=dict)
    """By rank and step: what was removed on purpose."""
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _per_s: float = 0.0
    """Commits that the store gave in a second, when it was asked last."""

    def expect(self, keys: Collection[StepKey]) -> Collection[StepKey]:
        """Record which steps the dump has, and forget all others.

        Asks the store for those that are new, for a moment only, so that a dump of many committed steps does
        not keep new ones waiting.

        Returns:
            Those for which the store is still to be asked, by `check`: nothing is known of them.

        Raises:
            StoreError: the store refused; call again.
        """
        for state in self.table.follow(keys):
            # When it comes back, nothing is known of it: it may have been removed from the store meanwhile.
            self._tombstones.pop(state.key.rank, None)
        new: dict[int, list[StepState]] = {}
        for state in self.table:
            if not state.is_expected:
                new.setdefault(state.key.rank, []).append(state)
        try:
            for rank, states in new.items():
                self._expect_of_rank(rank, states)
        finally:
            self._to_check = deque(state for state in self.table if state.is_unchecked)
        self.check(self.at_look_s)
        return {state.key for state in self._to_check}

    def check(self, for_s: float) -> bool:
        """Ask the store for steps it was not asked for yet, for about `for_s` seconds.

        Returns:
            Whether any are left.

        Raises:
            StoreError: the store refused; call again.
        """
        until = time.monotonic() + for_s
        while self._to_check:
            started = time.monotonic()
            at_once = int(min(max(self._per_s * for_s, _FEWEST), _MOST))
            states = list(itertools.islice(self._to_check, at_once))
            # A damaged commit counts as none here: the source still exists, and makes a good one.
            records = commit.read_records(self.objects, [state.key for state in states])
            for state in states:
                self._to_check.popleft()
                state.is_unchecked = False
                if (record := records.get(state.key)) is not None:
                    self._record(state, record.fingerprint)
                    state.stored = ExpectedObjects.of(record)
                    if (event := AnomalousCommitRead.of(record)) is not None:
                        self.notify(event)
            now = time.monotonic()
            self._per_s = len(states) / max(now - started, 1e-3)
            if now >= until:
                break
        return bool(self._to_check)

    @property
    def is_checked(self) -> bool:
        """Whether the store was asked for everything that it may have of the dump."""
        return not self._to_check

    def was_removed(self, key: StepKey, fingerprint: str, files: Sequence[SourceFile] = ()) -> bool:
        """Return whether a listing of a step is what was removed on purpose, or what is left of that.

        Never if `take_removed`. Asks the store once for each rank.

        Raises:
            StoreError: the store refused.
        """
        if self.take_removed or key.step is None:
            return False
        if key.rank not in self._tombstones:
            self._tombstones[key.rank] = read_tombstones(self.objects, key.rank)
        of_step = self._tombstones[key.rank].get(key.step, [])
        return any(tombstone.covers(fingerprint, files) for tombstone in of_step)

    def read(self, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
        """Ask the store for the commits of steps: another watcher may have made some meanwhile.

        Raises:
            StoreError: the store refused.
        """
        commits, _ = commit.read_many(self.objects, keys)
        for key in keys:
            state = self.table.get(key)
            if state is None:
                continue
            if key in commits:
                self._record(state, commits[key].fingerprint)
            elif state.committed is not None:
                state.committed = None
                self._tombstones.pop(key.rank, None)  # it was there: ask again what was removed
        return commits

    def recheck(self, limit: int) -> list[StepKey]:
        """Ask the store again for `limit` of the steps, each in its turn, and return those that went back.

        A step went back if its commit does not know of the one that was seen here. It was written by a task
        that was stopped, or by a request that reached the store long after it was given up. What others, who
        knew of that one, have committed since, stands.

        Raises:
            StoreError: the store refused; call again.
        """
        committed = (state for state in self.table if state.committed is not None)
        states = heapq.nsmallest(limit, committed, key=lambda state: state.turn)
        commits, _ = commit.read_many(self.objects, [state.key for state in states])
        reverted = []
        for state in states:
            current = commits.get(state.key)
            generations = current.record.generations if current is not None else ()
            if current is not None and state.committed not in {without_pool(name) for name in generations}:
                reverted.append(state.key)
                state.cover = None
                state.committed = without_pool(current.fingerprint)
            state.turn = next(self._turns)
        return reverted

    def files_of(self, commit_of_step: Commit) -> CommittedFiles:
        """Return the files of a commit, from its index.

        Raises:
            DamagedStore: the index of the commit cannot be read.
            StepRemoved: the step was removed since its commit was read.
        """
        return CommittedFiles.of(StoredStep(self.objects, commit_of_step).tables)

    def _expect_of_rank(self, rank: int, new: Sequence[StepState]) -> None:
        """Find out of which new steps of a rank the store has anything."""
        stored: set[StepKey] = set()
        if rank not in self._listed or len(new) > _FEW:
            stored.update(commit.list_keys(self.objects, [rank]))
            self._listed.add(rank)
        for state in new:
            state.is_expected, state.is_unchecked = True, state.key in stored

    def _record(self, state: StepState, fingerprint: str) -> None:
        if state.committed is None:
            state.turn = next(self._turns)
        state.committed = without_pool(fingerprint)
