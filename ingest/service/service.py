"""The service takes the steps of one dump into one store.

`tick` does it once; `watch` goes on, `ingest.service.one_shot` until everything is taken.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingest.dispatch.outcomes import Outcome, StepFailed, TaskRetried
from ingest.dispatch.submitter import Submitter
from ingest.dump_retention.policy import SourceDeleted
from ingest.heartbeat import beat
from ingest.service.commits import CHECK_S, CommitChecks
from ingest.service.dependencies import Dependencies
from ingest.service.disk_watch import DiskWatch
from ingest.service.foreign_dump import ForeignDumpCheck
from ingest.service.observers import Observers
from ingest.service.offering import Offering
from ingest.service.rechecks import Rechecks
from ingest.service.scan_schedule import ScanSchedule
from ingest.service.settling import believable, settle
from ingest.service.startup_check import StartupCheck
from ingest.service.stopping import is_interrupted
from ingest.steps.committed import Committed
from ingest.steps.decide import StepPolicy
from ingest.steps.events import CommitReverted, ContentReplaced, RecheckFailed, StoreRecovered
from ingest.steps.state import StepTable
from ingest.watching.watcher import DumpState, Watcher
from workers.errors import ClusterError, StoreError, StoreUnavailable
from workers.events import Event

if TYPE_CHECKING:  # importing it takes 0.03 s, and most dumps are kept
    from ingest.dump_retention.retention import SourceRetention

_TICK_S = 0.25
#: The same while dumps are deleted, or read again for somebody who waits, and nothing else is to be done.
_SHORT_TICK_S = 0.05
#: The first scan lists the steps that come first, until they have this many files (0.03 s): workers begin
#: with these while the next scan lists the rest.
_FIRST_FILES = 4096
#: How long what is under way may take to finish after Ctrl-C, in seconds.
INTERRUPTED_DRAIN_S = 2.0


@dataclass(slots=True)
class Service:
    """Watcher, store, workers and retention of one dump; `ingest.service.build` puts them together."""

    table: StepTable
    """What is known of each step: the one thing that all parts share."""
    watcher: Watcher
    committed: Committed
    offering: Offering
    submitter: Submitter
    commits: CommitChecks
    retention: SourceRetention | None
    """Deletes what is committed; None if dumps are kept."""
    disk: DiskWatch
    dependencies: Dependencies
    schedule: ScanSchedule
    observers: Observers
    policy: StepPolicy
    foreign_dumps: ForeignDumpCheck | None
    """Finds out whether the dump belongs to the store; None if its steps are to be replaced anyway."""
    rechecks: Rechecks
    """Reads committed files again."""
    clock: Callable[[], float] = time.monotonic
    dump_state: DumpState | None = None
    """What the last scan showed; None before the first."""

    def tick(self, *, wake: Callable[[float], object] | None = None) -> list[Outcome]:
        """Scan the dump, decide about complete steps, submit them, settle what has finished, and delete.

        The dump is scanned only if it is time to, and the rest takes a moment.

        Args:
            wake: called with the seconds to wait if nothing is to be done.
        """
        self.dependencies.tend()
        if self.dependencies.probe.poll_recovered():
            self._resume()
        if self.schedule.is_due:
            self.scan()
        # New steps first: what the store has of the others is asked for while they are converted.
        has_postponed = self.dump_state is not None and bool(self.dump_state.postponed)
        has_more = self.offering.offer(self.current_policy) or has_postponed
        is_asking = self._ask_store()
        outcomes = self._settle(self._idle(wake, has_more=has_more, is_asking=is_asking))
        self._delete()
        self._recheck(is_idle=not (has_more or is_asking or outcomes))
        return outcomes

    @property
    def current_policy(self) -> StepPolicy:
        """The policy, for a disk that is as full as it was at the last scan."""
        return self.disk.apply_to(self.policy)

    @property
    def is_deleting(self) -> bool:
        """Whether files of the dump are still to be deleted."""
        return self.retention is not None and self.retention.busy

    def scan(self) -> None:
        """Scan the dump, measure its disk, and compare the result with the store."""
        started = self.clock()
        self.disk.measure()
        try:
            first_files = _FIRST_FILES if self.dump_state is None else 0
            dump_state = self.watcher.scan(self.committed, self.current_policy, first_files=first_files)
            self.check_ranks({key.rank for key in dump_state.there})
            self.dump_state = dump_state
        except StoreError as exc:
            self.watcher.discard_scan()  # of ranks that may not belong to the store
            if self.dump_state is None:  # a run that does not try for ever has nothing to go on with
                self.dependencies.endure(exc)
            else:
                self.dependencies.report(exc)
            self.schedule.record_scan(started, failed=True)
            return
        self.schedule.is_fresh = True
        self.observers.notify(self.dump_state)
        # What is not listed may be what forbids to delete, such as an anomaly on another rank.
        if self.retention is not None and not self.dump_state.unlisted:
            self._report_all(self.retention.follow_scan())
        # Now: a slow answer of the store to what follows must not delay the next scan.
        self.schedule.record_scan(started, failed=False)
        if self.dump_state.postponed:
            self.schedule.scan_soon()
        self._report_all([CommitReverted(key) for key in self.commits.recheck()])

    def check_ranks(self, ranks: Collection[int], *, explains: bool = False) -> None:
        """Find out whether these ranks belong to the store, before anything of them is committed.

        Args:
            ranks: all of the dump.
            explains: whether to refuse single ranks only, because nothing is going to be written.

        Raises:
            ForeignDump: one does not, and nothing was committed yet. Later, such a rank is refused alone.
            StoreError: the store refused; call again.
        """
        if self.foreign_dumps is None:
            return
        foreign = {error.rank: error for error in self.foreign_dumps.check(ranks)}
        if foreign and not self.offering.has_begun and not explains:
            raise next(iter(foreign.values()))
        other_roots = frozenset(self.foreign_dumps.roots)
        if foreign != self.policy.foreign_ranks or other_roots != self.policy.other_roots:
            self.policy = replace(self.policy, foreign_ranks=foreign, other_roots=other_roots)

    def watch(
        self, stop: threading.Event, *, drain_s: float, before_end: Callable[[float], object] | None = None
    ) -> None:
        """Go on until `stop` is set, then finish what is under way within `drain_s` seconds.

        Args:
            stop: ends it.
            drain_s: how long it may take to end after SIGTERM.
            before_end: called first when it ends, with the time by which it is to return; not after Ctrl-C.
        """
        with without_old_objects():
            check = StartupCheck(self.committed.objects)
            while not stop.is_set():
                self.tick(wake=stop.wait)
                if self.dump_state is not None and self.committed.is_checked:
                    self._report_all(check.poll(self.table))
            is_hurried = is_interrupted(stop)
            until = self.clock() + (INTERRUPTED_DRAIN_S if is_hurried else drain_s)
            if before_end is not None and not is_hurried:
                before_end(until)
            self.drain(until)

    def drain(self, until: float) -> None:
        """Finish what is under way until this time by the clock of the service, and drop the rest.

        A store that is silent is not waited for: what needs it would not come to an end.
        """
        while self.submitter.busy and self.clock() < until and not self.dependencies.is_store_silent:
            self._settle(_TICK_S)
        self.submitter.cancel()

    def _ask_store(self) -> bool:
        """Ask the store for a part of what it has of the dump; return whether that was necessary."""
        has_asked = self.commits.ask()
        if has_asked and self.committed.is_checked:
            self.schedule.scan_soon()
        return has_asked

    def _idle(self, wake: Callable[[float], object] | None, *, has_more: bool, is_asking: bool) -> float:
        """Wait, if nothing is to be done; return how long to wait for tasks to finish."""
        busy = bool(self.submitter.offered_steps)
        if busy and not has_more:
            return CHECK_S if is_asking else _TICK_S  # workers need the processor, too
        if wake is not None and not busy:
            is_in_hurry = self.is_deleting or self.rechecks.is_busy
            pause_s = min(_SHORT_TICK_S if is_in_hurry else _TICK_S, self.schedule.poll_s)
            wake(0.0 if has_more or is_asking else pause_s)
        return 0.0

    def _settle(self, timeout_s: float) -> list[Outcome]:
        """Wait for tasks to finish, and record what came of their steps."""
        beat()
        finished: list[Outcome] = []
        try:
            finished = self.submitter.poll(timeout_s)
        except ClusterError as exc:
            self.dependencies.endure(exc)
        outcomes: list[Outcome] = [*self.offering.take_refused()]
        outcomes += [
            believable(outcome, self.table.ensure(outcome.plan.key))
            for outcome in self.commits.confirm(finished)
        ]
        for outcome in outcomes:
            self.schedule.outdate()
            if isinstance(outcome, StepFailed | TaskRetried):
                self.dependencies.probe.report_failure(outcome.error)
            settle(outcome, self.table.ensure(outcome.plan.key), self.clock())
            self.observers.notify(outcome)
        return outcomes

    def _delete(self) -> None:
        """Go on with deleting what is committed."""
        if self.retention is None:
            return
        try:
            self._report_all(self.retention.poll())
        except ClusterError as exc:
            self.dependencies.endure(exc)

    def _recheck(self, *, is_idle: bool) -> None:
        """Go on with reading committed files again, if nothing else is to be done."""
        is_idle = is_idle and self.dump_state is not None and not self.submitter.offered_steps
        try:
            events = self.rechecks.poll(is_idle=is_idle and not self.is_deleting)
        except ClusterError as exc:
            self.dependencies.endure(exc)
            return
        if events:
            self.schedule.scan_soon()
        self._report_all(events)

    def _resume(self) -> None:
        """Try at once what waited for the store, which is back."""
        self.observers.notify(StoreRecovered())
        self.submitter.retry_now(StoreUnavailable)
        for state in self.table:
            state.retry_with_store()
        self.schedule.scan_soon()

    def _report_all(self, events: Sequence[Event]) -> None:
        """Report events; after some of them, the last scan does not hold any more."""
        for event in events:
            if isinstance(event, SourceDeleted | CommitReverted | ContentReplaced):
                self.schedule.outdate()
            if isinstance(event, RecheckFailed):
                self.dependencies.probe.report_failure(event.error)
            self.observers.notify(event)


@contextmanager
def without_old_objects() -> Iterator[None]:
    """Leave what is in memory by now out of garbage collections.

    Converting thousands of files triggers a full collection. Modules and compiled code make it last 75 ms.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
