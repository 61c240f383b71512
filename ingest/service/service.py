"""The service takes the steps of one dump into one store.

`tick` does it once; `watch` goes on, `ingest.service.one_shot` until everything is taken.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ingest.disk import DiskSeen, space_at
from ingest.dispatch.clients import TaskClient
from ingest.dispatch.submitter import Outcome, StepCommitted, StepFailed, StepStale, Submitter, TaskRetried
from ingest.dispatch.window import READ_BACKS_AT_ONCE, ReadBackQueue, TaskMonitor, TaskWindow
from ingest.dump_retention.policy import NO_NEWS, SourceDeleted, SourceJudge
from ingest.layouts import black_box
from ingest.layouts.base import Dump
from ingest.layouts.black_box import BlackBoxes, RingFound, read_boxes
from ingest.service.foreign_dump import ForeignDumpCheck
from ingest.service.offering import (
    Dependencies,
    Offering,
    Planner,
    ServiceOptions,
    SharedInDump,
    SharedTensors,
    StoreProbe,
)
from ingest.service.rechecks import Rechecks, StartupCheck
from ingest.service.stopping import is_interrupted
from ingest.steps.committed import Committed
from ingest.steps.decide import StepPolicy
from ingest.steps.events import CommitReverted, ContentReplaced, RecheckFailed, StoreRecovered
from ingest.steps.state import StepState, StepTable
from ingest.steps.watcher import DumpState, Watcher
from workers.errors import ClusterError, StoreError, StoreUnavailable
from workers.events import Event, Observer
from workers.host.heartbeat import beat
from workers.model import StepKey
from workers.store import commit
from workers.store.backends.wrappers import BoundedObjects, Outage
from workers.store.objects import ObjectStore
from workers.store.packed.pool import without_pool

if TYPE_CHECKING:  # importing it takes 0.03 s, and most dumps are kept
    from ingest.dispatch.processes import ProcessWorkers
    from ingest.dump_retention.retention import SourceRetention
    from ingest.store_gc.ring import StoreRing

_TICK_S = 0.25
#: The same while dumps are deleted, or read again for somebody who waits, and nothing else is to be done.
_SHORT_TICK_S = 0.05
#: The first scan lists the steps that come first, until they have this many files (0.03 s): workers begin
#: with these while the next scan lists the rest.
_FIRST_FILES = 4096
#: How long what is under way may take to finish after Ctrl-C, in seconds.
INTERRUPTED_DRAIN_S = 2.0
#: How often commits are read again, and how many: 10,000 within 40 minutes.
_RECHECK_S = 60.0
_RECHECKED = 256
#: How long worker processes of its own that have nothing to do stay, in seconds.
_WORKERS_STAY_S = 60.0
#: The pause between two scans of a dump whose file system reports changes, in seconds, while all that it has
#: is committed, and the longest one after scans that take long: should an event be lost, this is how late a
#: step is noticed.
_CALM_S, _LONGEST_CALM_S = 60.0, 600.0
#: The share of the time that such scans may take.
_CALM_SHARE = 0.005
#: How long the store is asked for commits between two checks for finished tasks, in seconds.
_CHECK_S = 0.05
#: The share of the time that scans may take, because a large dump takes long to list. A scan that failed has
#: mostly waited for the store.
_SCAN_SHARE = 0.1
_FAILED_SCAN_SHARE = 0.5
#: The longest pause, in seconds, after a scan that took far longer than the one before: something other than
#: the size of the dump may have held it up.
_LONGEST_FIRST_REST_S = 60.0
_ELSEWHERE_HINT = "A directory as store must be the same one for the workers; else use a URL such as s3://..."


class Observers(list[Observer]):
    """The observers of one service, in the order in which they are called."""

    def notify(self, event: Event) -> None:
        """Call every observer with an event."""
        for observer in self:
            observer(event)


@dataclass(slots=True)
class ScanSchedule:
    """When to scan the dump: often, but for at most a tenth of the time."""

    poll_s: float = 1.0
    """The shortest time between two scans, in seconds."""
    clock: Callable[[], float] = time.monotonic
    is_fresh: bool = False
    """Whether no step has changed its state since the last scan, so that its result still holds."""
    next_at: float = 0.0
    rests_until: float = 0.0
    """Until this time, a change in the dump does not make a scan due."""
    hears_all: threading.Event = field(default_factory=threading.Event)
    """Set while `note_change` is called for every change in the dump."""
    _last_took_s: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to scan."""
        return self.clock() >= self.next_at

    def scan_soon(self) -> None:
        """Make a scan due now."""
        self.next_at = 0.0

    def note_change(self) -> None:
        """Make a scan due as soon as the share of the time allows, because the dump has changed."""
        self.next_at = min(self.next_at, self.rests_until)

    def outdate(self) -> None:
        """Record that a step has changed its state since the last scan."""
        self.is_fresh = False

    def record_scan(self, started: float, *, failed: bool, is_calm: bool = False) -> None:
        """Record a scan that has just ended; `is_calm` if nothing can happen but what is heard of."""
        share = _FAILED_SCAN_SHARE if failed else _SCAN_SHARE
        now = self.clock()
        took_s, last_took_s, rest_per_s = now - started, self._last_took_s, 1 / share - 1
        self._last_took_s = took_s
        rest_s = min(took_s * rest_per_s, max(last_took_s * rest_per_s, _LONGEST_FIRST_REST_S))
        self.rests_until = now + rest_s
        pause_s = self.poll_s
        if is_calm and self.hears_all.is_set():
            pause_s = max(pause_s, _CALM_S, min(took_s / _CALM_SHARE, _LONGEST_CALM_S))
        self.next_at = max(now + pause_s, self.rests_until)


class Service:
    """Watcher, store, workers and retention of one dump, around one table of steps.

    Nothing is scanned before the first `tick`.

    Args:
        dump: what to take steps from.
        objects: the store to take them into.
        connect: returns a connected client; called when the first step is offered, and if a client is
            lost.
        options: what to do.
        observers: called with everything that happens.
    """

    def __init__(
        self,
        dump: Dump,
        objects: ObjectStore,
        connect: Callable[[], TaskClient],
        options: ServiceOptions | None = None,
        *,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.options = options = options or ServiceOptions()
        self.clock = clock = options.clock
        self.observers = heard = Observers(observers)
        #: What is known of each step: the one thing that all parts share.
        self.table = table = StepTable()
        outage = Outage()
        patient = BoundedObjects(objects, options.patience_s, outage)
        self.committed = Committed(patient, table, take_removed=options.take_removed, notify=heard.notify)
        self.watcher = watcher = Watcher(dump, options.grid, table, options.quiet_clock)
        monitor = TaskMonitor(options.task_timeout_s, clock, notify=heard.notify)
        self.submitter = Submitter(connect, options.limits, table, clock, options.resources, monitor=monitor)
        self.schedule = ScanSchedule(options.poll_s, clock)

        def ask() -> None:
            commit.read_root(objects)
            outage.end()

        self.dependencies = Dependencies(
            heard.notify,
            StoreProbe(ask),
            options.retry_forever,
            options.patience_s,
            outage,
            lambda: commit.read_root(patient),
            clock,
        )
        in_store = SharedTensors(patient)
        in_dump = SharedInDump(
            dump.root, options.grid, lambda key: watcher.complete_ranks(key, options.policy, clock())
        )
        shared = (lambda key: in_store.of(key) or in_dump.of(key)) if options.pool else None
        self.offering = Offering(
            watcher,
            Planner(dump.root, self.committed, options, shared),
            self.submitter,
            self.dependencies,
            heard.notify,
            self.schedule.outdate,
            clock,
        )
        #: Finds out whether the dump belongs to the store; None if its steps are to be replaced anyway.
        self.foreign_dumps = (
            None
            if options.policy.replace
            else ForeignDumpCheck(dump, patient, options.grid, options.host, set(options.continues))
        )
        self.policy = replace(
            options.policy,
            deletes=options.retention is not None,
            other_roots=frozenset(options.continues),
        )
        #: Reads committed files again.
        self.rechecks = Rechecks(
            table,
            str(dump.root),
            objects.address,
            self.submitter.client,
            options.recheck_rate,
            options.resources,
            clock,
            monitor,
        )
        #: Deletes what is committed; None if dumps are kept.
        self.retention = _retention(dump, self.committed, self.submitter, options, monitor)
        #: What the last scan showed; None before the first.
        self.dump_state: DumpState | None = None
        #: How full the disk of the dump was at the last scan; None if that does not matter.
        self.disk: DiskSeen | None = None
        #: Processes of its own that may rest while there is nothing to do; None if there are none.
        self.workers: ProcessWorkers | None = None
        #: Drops tensors of steps that were committed long ago; None if all stay.
        self.ring: StoreRing | None = _ring(objects, options)
        self.boxes = BlackBoxes()
        self._next_recheck = clock() + _RECHECK_S
        #: When there was something to do for workers.
        self._worked_at = 0.0

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
        self._recheck_commits()
        # New steps first: what the store has of the others is asked for while they are converted.
        has_postponed = self.dump_state is not None and bool(self.dump_state.postponed)
        has_more = self.offering.offer(self.current_policy) or has_postponed
        is_asking = self._ask_store()
        outcomes = self._settle(self._idle(wake, has_more=has_more, is_asking=is_asking))
        if self.retention is not None:
            with self._enduring():
                self._report_all(self.retention.poll())
        self._recheck_files(is_idle=not (has_more or is_asking or outcomes))
        self._rest_workers(is_idle=not (has_more or is_asking or outcomes))
        return outcomes

    @property
    def current_policy(self) -> StepPolicy:
        """The policy, for a disk that is as full as it was at the last scan."""
        return self.policy if self.disk is None else self.policy.under(self.disk)

    @property
    def is_deleting(self) -> bool:
        """Whether files of the dump are still to be deleted."""
        return self.retention is not None and self.retention.busy

    def measure_disk(self) -> None:
        """Measure the free space and report it. While the dump is gone, the last measurement stands."""
        space = space_at(self.watcher.dump.root)
        if self.options.pressure is not None and space is not None:
            self.disk = self.options.pressure.judge(space)
            self.observers.notify(self.disk)

    def _look_at_boxes(self) -> None:
        """Take in what black boxes of processes that died have left, and read what the others hold."""
        root = self.watcher.dump.root
        if (root / black_box.DIRECTORY).is_dir() and not self.options.dry_run:
            from ingest.recording.black_box import adopt  # deferred: takes 0.1 s, and few dumps need it

            for told in adopt(root):
                self.observers.notify(RingFound(told))
        if (boxes := read_boxes(root)) != self.boxes:
            self.boxes = boxes
            self.observers.notify(boxes)

    def scan(self) -> None:
        """Scan the dump, measure its disk, and compare the result with the store."""
        started = self.clock()
        self.measure_disk()
        self._look_at_boxes()
        try:
            first_files = _FIRST_FILES if self.dump_state is None else 0
            dump_state = self.watcher.scan(self.committed, self.current_policy, first_files=first_files)
            self.check_ranks({key.rank for key in dump_state.there})
            known = {} if self.dump_state is None else self.dump_state.pending
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
        self.rechecks.follow_scan()
        self.observers.notify(self.dump_state)
        # What is not listed may be what forbids to delete, such as an anomaly on another rank.
        if self.retention is not None and not self.dump_state.unlisted:
            self._report_all(self.retention.follow_scan())
        # Now: a slow answer of the store to what follows must not delay the next scan.
        is_settled = not (dump_state.pending or dump_state.unlisted or self.is_deleting)
        self.schedule.record_scan(started, failed=False, is_calm=is_settled)
        if self.workers is not None and dump_state.pending.keys() - known.keys():
            self._worked_at = self.clock()
            with self._enduring():
                self.submitter.client()  # workers start while the step is still to be complete
        if self.dump_state.postponed:
            self.schedule.scan_soon()

    def check_ranks(self, ranks: Collection[int], *, explains: bool = False) -> None:
        """Find out whether these ranks belong to the store, before anything of them is committed.

        Args:
            ranks: all of the dump.
            explains: whether to refuse single ranks only, because nothing is going to be written.

        Raises:
            UsageError: one does not, and nothing was committed yet. Later, such a rank is refused alone.
            StoreError: the store refused; call again.
        """
        if self.foreign_dumps is None:
            return
        foreign = dict(self.foreign_dumps.check(ranks))
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
                    if not check.is_running:
                        self._turn_ring()
            is_hurried = is_interrupted(stop)
            until = self.clock() + (INTERRUPTED_DRAIN_S if is_hurried else drain_s)
            if before_end is not None and not is_hurried:
                before_end(until)
            self.drain(until)
            self._end_ring(until)

    def _turn_ring(self) -> None:
        if self.ring is not None:
            self._report_all(self.ring.poll(self._look_for_ring))

    def _look_for_ring(self) -> tuple[set[int], set[StepKey], set[int]]:
        """Return the ranks, the steps of which files are still to be read back, and those to be committed."""
        busy = {
            state.key
            for state in self.table
            if self.retention is not None
            and state.listing is not None
            and (state.deletion.kept is None or state.deletion.kept.reason in NO_NEWS)
        }
        pending = {state.key.step for state in self.table if state.is_pending and state.key.step is not None}
        return {state.key.rank for state in self.table}, busy, pending

    def _end_ring(self, until: float) -> None:
        if self.ring is None:
            return
        while self.ring.is_busy and self.clock() < until and not self.dependencies.is_store_silent:
            self._turn_ring()
            time.sleep(_SHORT_TICK_S)
        self.ring.stop.set()
        self._turn_ring()

    def drain(self, until: float) -> None:
        """Finish what is under way until this time by the clock of the service, and drop the rest.

        A store that is silent is not waited for: what needs it would not come to an end.
        """
        while self.submitter.offered_steps and self.clock() < until and not self.dependencies.is_store_silent:
            self._settle(_TICK_S)
        self.submitter.cancel()

    def _ask_store(self) -> bool:
        """Ask the store for a part of what it has of the dump; return whether that was necessary."""
        if self.committed.is_checked:
            return False
        try:
            is_left = self.committed.check(_CHECK_S)
        except StoreError as exc:
            self.dependencies.endure(exc)
            return False
        if not is_left:
            self.schedule.scan_soon()
        return True

    def _idle(self, wake: Callable[[float], object] | None, *, has_more: bool, is_asking: bool) -> float:
        """Wait, if nothing is to be done; return how long to wait for tasks to finish."""
        busy = bool(self.submitter.offered_steps)
        if busy and not has_more:
            return _CHECK_S if is_asking else _TICK_S  # workers need the processor, too
        if wake is not None and not busy:
            is_in_hurry = self.is_deleting or self.rechecks.is_busy
            pause_s = min(_SHORT_TICK_S if is_in_hurry else _TICK_S, self.schedule.poll_s)
            wake(0.0 if has_more or is_asking else pause_s)
        return 0.0

    def _settle(self, timeout_s: float) -> list[Outcome]:
        beat()
        finished: list[Outcome] = []
        with self._enduring():
            finished = self.submitter.poll(timeout_s)
        refused, self.offering.refused = self.offering.refused, []
        outcomes = [
            settle(outcome, self.table.ensure(outcome.plan.key), self.clock())
            for outcome in (*refused, *self._confirm(finished))
        ]
        for outcome in outcomes:
            self.schedule.outdate()
            if self.ring is not None and isinstance(outcome, StepCommitted):
                self.ring.note(outcome.plan.key)
            if isinstance(outcome, StepFailed | TaskRetried):
                self.dependencies.probe.report_failure(outcome.error)
            self.observers.notify(outcome)
        return outcomes

    def _confirm(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes; a commit that workers made and this process cannot see is a failure."""
        made = {outcome.plan.key: outcome for outcome in outcomes if isinstance(outcome, StepCommitted)}
        try:
            commits = self.committed.read(list(made))
        except StoreError as exc:
            self.dependencies.report(exc)
            return list(outcomes)
        confirmed = list(outcomes)
        for number, outcome in enumerate(outcomes):
            plan, seen = outcome.plan, commits.get(outcome.plan.key)
            is_seen = seen is not None and plan.fingerprint in seen.record.generations
            if isinstance(outcome, StepCommitted) and not is_seen:
                where = f"{plan.store.url} as seen from here"
                message = f"{plan.key}: the workers committed it, but it is not in {where}"
                confirmed[number] = StepFailed(plan, StoreError(message, hint=_ELSEWHERE_HINT))
        return confirmed

    def _recheck_commits(self) -> None:
        """Read some commits again if it is time to, and report the steps of which an older one came back."""
        if self.clock() < self._next_recheck:
            return
        self._next_recheck = self.clock() + _RECHECK_S
        try:
            if reverted := self.committed.recheck(_RECHECKED):
                self.schedule.scan_soon()
                self._report_all([CommitReverted(key) for key in reverted])
        except StoreError as exc:
            self.dependencies.report(exc)

    def _recheck_files(self, *, is_idle: bool) -> None:
        is_idle = is_idle and self.dump_state is not None and not self.submitter.offered_steps
        with self._enduring():
            events = self.rechecks.poll(is_idle=is_idle and not self.is_deleting)
            if events:
                self.schedule.scan_soon()
            self._report_all(events)

    def _rest_workers(self, *, is_idle: bool) -> None:
        if self.workers is None:
            return
        is_busy = self.submitter.offered_steps or self.is_deleting or self.rechecks.is_reading
        if is_busy or not is_idle:
            self._worked_at = self.clock()
        elif self.clock() > self._worked_at + _WORKERS_STAY_S:
            self.workers.rest()

    @contextmanager
    def _enduring(self) -> Iterator[None]:
        """Have a cluster that does not answer waited for, unless the service gives up."""
        try:
            yield
        except ClusterError as exc:
            self.dependencies.endure(exc)

    def _resume(self) -> None:
        """Try at once what waited for the store, which is back."""
        self.observers.notify(StoreRecovered())
        self.submitter.retry_now(StoreUnavailable)
        for state in self.table:
            if state.pause is not None and state.pause.for_store:
                state.pause = None
        self.schedule.scan_soon()

    def _report_all(self, events: Sequence[Event]) -> None:
        """Report events; after some of them, the last scan does not hold any more."""
        for event in events:
            if isinstance(event, SourceDeleted | CommitReverted | ContentReplaced):
                self.schedule.outdate()
            if isinstance(event, RecheckFailed):
                self.dependencies.probe.report_failure(event.error)
            self.observers.notify(event)


def settle(outcome: Outcome, state: StepState, now: float) -> Outcome:
    """Record what came of a step: when it is tried again, and what is to be looked at before.

    Returns:
        The outcome, with the error to believe in.
    """
    plan = outcome.plan
    match outcome:
        case StepStale():
            state.record_stale(plan.fingerprint)
        case StepCommitted(summary=summary):
            is_partial = summary.status == "partial"
            files = frozenset(entry.source for entry in plan.entries) if is_partial else frozenset()
            state.record_commit(without_pool(plan.fingerprint), now, files)
        case StepFailed():
            error = state.believable(outcome.error)
            if not state.record_bad_file(plan, error):
                state.record_failure(error, now)
            return StepFailed(plan, error)
    return outcome


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


def _ring(objects: ObjectStore, options: ServiceOptions) -> StoreRing | None:
    if options.black_box is None:
        return None
    from ingest.store_gc.ring import StoreRing  # deferred: 0.1 s, and most stores keep all

    return StoreRing(objects, options.black_box)


def _retention(
    dump: Dump, committed: Committed, submitter: Submitter, options: ServiceOptions, monitor: TaskMonitor
) -> SourceRetention | None:
    if options.retention is None:
        return None
    from ingest.dump_retention.retention import SourceRetention  # deferred: 0.03 s, mostly idle

    return SourceRetention(
        SourceJudge(committed.table, committed, dump.root, options.host, options.retention),
        committed.objects.address,
        ReadBackQueue(
            submitter.client,
            TaskWindow(READ_BACKS_AT_ONCE, options.limits.inflight_nbytes, monitor=monitor),
            options.resources,
        ),
        retry_forever=options.retry_forever,
        dry_run=options.dry_run,
        clock=options.clock,
    )
