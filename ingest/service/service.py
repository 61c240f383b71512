"""The service: watcher, store and submitter wired together.

`tick` does it once; `watch` and `ingest` keep on.
"""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ingest.disk.pressure import Pressure
from ingest.disk.space import space_at
from ingest.dispatch.submitter import Outcome, StepCommitted, StepFailed, StepStale, Submitter, TaskRetried
from ingest.dump_retention.retention import SourceDeleted, SourceRetention
from ingest.layouts.base import Listing
from ingest.planning.inspection import Inspected
from ingest.planning.plan import plan_step
from ingest.service.report import Report
from ingest.service.store_probe import StoreProbe
from ingest.steps.caches import keep_only
from ingest.steps.committed import Committed
from ingest.steps.events import CommitReverted, DependencyDown, StoreRecovered
from ingest.steps.replacement import Standing
from ingest.watching.watcher import DumpState, Watcher
from workers.errors import ClusterError, StoreError, StoreUnavailable
from workers.events import Event, Observer
from workers.model import StepKey
from workers.rules.values import RuleSet
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import Origin, StoreAddress
from workers.tasks.model import StepPlan

#: Steps under way at once, and rows of their plans; more only wait in memory.
MAX_STEPS_UNDER_WAY = 256
MAX_ROWS_UNDER_WAY = 200_000
#: Steps that are planned before they are offered, and for how long: the store is asked for all at once, but
#: workers must not wait for the last.
_BATCH = 16
_BATCH_S = 0.1
#: How often the run files of a rank are committed again while they keep changing: first and longest pause.
_RUN_PAUSE_S = (60.0, 3600.0)
_FAILED_PAUSE_S = 60.0
#: How often commits are read again, and how many: 10,000 within 40 minutes.
_RECHECK_S = 60.0
_RECHECKED = 256
#: How much of the time goes into looking: a large dump takes long to list. One that failed waited for the
#: store, and did not list.
_SHARE_OF_LOOKS = 0.1
_SHARE_OF_FAILED_LOOKS = 0.5
_TICK_S = 0.25
#: The same while dumps are deleted and nothing else is to be done.
_SHORT_TICK_S = 0.05
#: How long the store is asked for commits between two looks at finished tasks.
_CHECK_S = 0.05
#: How often workers may see another file than this process before it is no coincidence.
_MAX_STALE = 5
_STALE_HINT = (
    "Workers must see the dump under the same path as this host: start them here, or where the file system "
    "is shared. (Or a file there has a header that keeps changing.)"
)
_ELSEWHERE_HINT = "A directory as store must be the same one for the workers; else use a URL such as s3://..."


@contextmanager
def _without_old_objects() -> Iterator[None]:
    """Leave what is there by now out of garbage collections.

    A step of thousands of files brings a full one about. Modules and compiled code make it last 75 ms.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    for_store: bool = False
    """Whether the step failed because the store did not answer."""


@dataclass(slots=True)
class Service:
    """Takes the steps of one dump into one store."""

    watcher: Watcher
    submitter: Submitter
    committed: Committed
    store: StoreAddress
    observers: list[Observer] = field(default_factory=list)
    poll_s: float = 1.0
    patient: bool = False
    """Whether to wait for a cluster that is not there, rather than raise."""
    replace: bool = False
    """Whether steps that came from another dump may be replaced."""
    rules: RuleSet | None = None
    """What to look for in each step when it is committed."""
    pressure: Pressure | None = None
    """Judges how full the disk of the dump is; None where that does not matter."""
    retention: SourceRetention | None = None
    """Deletes what is committed; None where dumps are kept."""
    host: str = field(default_factory=socket.gethostname)
    """What this host is called in commits: device ids mean something on their host only."""
    clock: Callable[[], float] = time.monotonic
    view: DumpState | None = None
    _prepared: bool = False
    """Whether cluster and store have been there once, so that steps can be offered."""
    _next_look: float = 0.0
    _rests_until: float = 0.0
    """Before that, a change in the dump brings no look about."""
    _next_recheck: float | None = None
    _view_is_fresh: bool = False
    """Whether nothing has come of any task since the last look."""
    _outage: StoreProbe = field(init=False)
    _paused: dict[StepKey, _Pause] = field(default_factory=dict)
    """Steps that are left alone for a while."""
    _run_pauses: dict[StepKey, float] = field(default_factory=dict)
    _stale: dict[StepKey, tuple[str, int]] = field(default_factory=dict)
    """How often in a row workers saw other files than this process, and of which generation."""
    _given_up: list[Outcome] = field(default_factory=list)
    """Steps that were not even offered; told with the next outcomes."""
    _leave_out_tensors: str = ""
    """Why the tensors of steps are not stored for now; "" where they are."""

    def __post_init__(self) -> None:
        """Hear what is deleted, and know how to ask for the store."""
        self._outage = StoreProbe(lambda: commit.read_root(self.committed.objects))
        if self.retention is not None:
            self.retention.tell = self._tell_of_retention

    def tick(self, *, wake: Callable[[float], object] | None = None) -> list[Outcome]:
        """Look if it is time to, take on what is complete, and wait a moment for tasks to finish."""
        if self._outage.poll_recovered():
            self._go_on_after_outage()
        if self.clock() >= self._next_look:
            self._look()
        # New steps first: what the store has of the others is asked for while they are converted.
        there_is_more = self._take_on()
        is_checking = self._check()
        if self.submitter.busy and not there_is_more:
            outcomes = self._drive(_CHECK_S if is_checking else _TICK_S)  # workers need the processor, too
        else:
            if wake is not None and not self.submitter.busy:
                more = there_is_more or is_checking
                wake(0.0 if more else min(_SHORT_TICK_S if self._is_deleting else _TICK_S, self.poll_s))
            outcomes = self._drive(0.0)
        self._delete()
        return outcomes

    @property
    def _is_deleting(self) -> bool:
        return self.retention is not None and self.retention.busy

    def _delete(self) -> None:
        """Go on with deleting what is committed."""
        if self.retention is None:
            return
        try:
            self.retention.drive()
        except ClusterError as exc:
            if not self.patient:
                raise
            self._tell_trouble(exc)

    def _drive(self, timeout_s: float) -> list[Outcome]:
        try:
            outcomes = self.submitter.drive(timeout_s)
        except ClusterError as exc:
            if not self.patient:
                raise
            self._tell_trouble(exc)
            return []
        outcomes = [*self._given_up, *map(self._believed, self._checked(outcomes))]
        self._given_up.clear()
        for outcome in outcomes:
            self._note(outcome)
        return outcomes

    def _checked(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes; a commit that this process cannot see, where the workers can, is a failure."""
        keys = [outcome.plan.key for outcome in outcomes if isinstance(outcome, StepCommitted)]
        try:
            found = self.committed.read(keys)
        except StoreError as exc:
            self._tell_trouble(exc)
            return list(outcomes)
        return [
            self._as_seen(outcome, found) if isinstance(outcome, StepCommitted) else outcome
            for outcome in outcomes
        ]

    def _as_seen(self, outcome: StepCommitted, found: Mapping[StepKey, Commit]) -> Outcome:
        plan = outcome.plan
        there = found.get(plan.key)
        if there is not None and plan.fingerprint in there.record.generations:
            return outcome
        message = f"{plan.key}: the workers committed it, but it is not in {self.store.url} as seen from here"
        return StepFailed(plan, StoreError(message, hint=_ELSEWHERE_HINT))

    def look_soon(self) -> None:
        """Look at the dump at the next tick."""
        self._next_look = 0.0

    def note_change(self) -> None:
        """Look at the dump as soon as a tenth of the time allows: something there has changed."""
        self._next_look = min(self._next_look, self._rests_until)

    @_without_old_objects()
    def watch(self, stop: threading.Event, *, drain_s: float) -> None:
        """Go on until `stop` is set, then finish what is under way within `drain_s` seconds."""
        while not stop.is_set():
            self.tick(wake=stop.wait)
        self._drain(drain_s)

    @_without_old_objects()
    def ingest(self, stop: threading.Event) -> Report:
        """Take everything that is there, wait for what is not complete yet, and say what came of it."""
        report = Report()
        self.observers.append(report.observe)
        try:
            self._ingest(stop, report)
        finally:
            self.observers.remove(report.observe)
        return report

    def _ingest(self, stop: threading.Event, report: Report) -> None:
        wanted: frozenset[StepKey] | None = None
        while not stop.is_set() and report.stopped_by is None:
            for outcome in self.tick(wake=stop.wait):
                report.take(outcome)
            if self.view is None:
                continue
            if self.view.pending:
                self.submitter.prepare()  # workers start while the last step is still to be quiet
            # What a running job adds meanwhile is for the next run, or this one would never end.
            wanted = wanted if wanted is not None else self.view.there
            if self._nothing_left(report, wanted):
                break
        self.submitter.cancel()
        if self.view is not None:
            report.close(self.view, self.watcher.denied)
            report.removed = [key for key in report.unchanged if not self.committed.has(key)]
            report.unchanged = [key for key in report.unchanged if self.committed.has(key)]
        report.missing_steps = self._not_in_store(report.missing_steps)
        if self.retention is not None:
            report.source_kept = sorted(self.retention.reasons.values(), key=lambda one: one.key.order)

    def _not_in_store(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of these steps that no rank has in the store: others were there, and are deleted."""
        if not steps:
            return ()
        try:
            stored = {key.step for key in commit.list_keys(self.committed.objects)}
        except StoreError as exc:
            self._tell_trouble(exc)
            return ()
        return tuple(step for step in steps if step not in stored)

    def _nothing_left(self, report: Report, wanted: frozenset[StepKey]) -> bool:
        if self.view is None or self.submitter.busy or self._is_deleting:
            return False
        if not self._view_is_fresh:
            self._look()  # now, and not after the pause that the next tick begins with
        if self.view.unlisted or not self._view_is_fresh or self._is_deleting:
            return False
        # Run files may change as long as the job runs: once is enough.
        taken = {summary.key for summary in report.commits if summary.key.step is None}
        left = self.view.pending.keys() & wanted
        return not left - report.failures.keys() - self.watcher.denied.keys() - taken

    def _look(self) -> None:
        started = self.clock()
        self._look_at_disk()
        try:
            self.view = self.watcher.look(self.committed.holds, self.committed.expect)
        except StoreError as exc:
            # A one-shot run without a first look has nothing to go on with.
            if self.view is None and not self.patient:
                raise
            self._tell_trouble(exc)
            share = _SHARE_OF_FAILED_LOOKS
        else:
            share = _SHARE_OF_LOOKS
            self._view_is_fresh = True
            self._forget(self.view.there)
            self._tell(self.view)
            # What is not listed may be what forbids to delete, such as an anomaly on another rank.
            if self.retention is not None and not self.view.unlisted:
                self.retention.see(self.view)
            self._recheck()
        now = self.clock()
        self._rests_until = now + (now - started) * (1 / share - 1)
        self._next_look = max(now + self.poll_s, self._rests_until)

    def _recheck(self) -> None:
        """Look from time to time whether what was committed is still what is committed."""
        now = self.clock()
        if self._next_recheck is None:  # at first all was just read
            self._next_recheck = now + _RECHECK_S
        if now < self._next_recheck:
            return
        self._next_recheck = now + _RECHECK_S
        try:
            for key in self.committed.recheck(_RECHECKED):
                self._tell(CommitReverted(key))
                self._view_is_fresh = False
        except StoreError as exc:
            self._tell_trouble(exc)

    def _forget(self, present: Collection[StepKey]) -> None:
        """Drop what is remembered of steps that are not in the dump any more."""
        keep_only(present, self._paused, self._run_pauses, self._stale)

    def _check(self) -> bool:
        """Ask the store for a part of what it has of the dump; whether to go on. Look when all is known."""
        if self.committed.is_checked:
            return False
        try:
            more = self.committed.check(_CHECK_S)
        except StoreError as exc:
            if not self.patient:
                raise
            self._tell_trouble(exc)
            return False
        if not more:
            self.look_soon()
        return True

    def _look_at_disk(self) -> None:
        space = space_at(self.watcher.dump.root)
        if self.pressure is None or space is None:
            return  # the dump is gone for the moment; what was found last stands
        seen = self.pressure.see(space)
        self.watcher.newest_first = seen.under_pressure and seen.policy == "newest"
        self._leave_out_tensors = seen.leave_out_tensors
        self.watcher.tensors_may_wait = bool(seen.leave_out_tensors)
        self._tell(seen)

    def _take_on(self) -> bool:
        """Offer some steps that are complete; whether there may be more."""
        started = self.clock()
        left_alone = {
            key for key, pause in self._paused.items() if pause.until > started
        } | self.submitter.busy
        if self.retention is not None:
            left_alone |= self.retention.removing
        batch: list[tuple[Inspected, StepPlan]] = []
        while self._has_room([plan for _, plan in batch]):
            if len(batch) == _BATCH or (batch and self.clock() > started + _BATCH_S):
                self._offer(batch)
                return True
            taken = self.watcher.take(1, busy=left_alone)
            if not taken:
                break
            batch.append((taken[0], self._plan(taken[0], self._leave_out_tensors)))
        if batch:
            self._offer(batch)
        return False

    def _has_room(self, plans: Sequence[StepPlan]) -> bool:
        """Whether there is room for a step more than those that are under way, and these."""
        submitter = self.submitter
        steps = len(submitter.busy) + len(plans)
        return not steps or (
            steps < MAX_STEPS_UNDER_WAY
            and submitter.offered_rows + sum(len(plan.entries) for plan in plans) < MAX_ROWS_UNDER_WAY
            and submitter.unread_nbytes + sum(plan.nbytes for plan in plans)
            < submitter.limits.inflight_nbytes
        )

    def _plan(self, inspected: Inspected, leave_out_tensors: str = "") -> StepPlan:
        listing = inspected.listing
        why = leave_out_tensors if listing.key.step is not None else ""
        root = str(self.watcher.dump.root)
        origin = Origin(listing.layout, self.host, root, listing.rank_from)
        grid = self.watcher.grid
        return plan_step(inspected, origin, self.store, grid, self.rules, leave_out_tensors=why)

    def _offer(self, batch: Sequence[tuple[Inspected, StepPlan]]) -> None:
        try:
            if not self._prepared:
                self.submitter.prepare()
                commit.ensure_root(self.committed.objects)
                self._prepared = True
            found = self.committed.read([plan.key for _, plan in batch])
            offered = [
                plan
                for inspected, plan in self._with_tensors_kept(batch, found)
                if self._is_to_be_offered(inspected.listing, plan, found.get(plan.key))
            ]
        except (StoreError, ClusterError) as exc:
            if not self.patient:
                raise
            self._tell_trouble(exc)
            return
        for plan in offered:
            there = found.get(plan.key)
            self.submitter.offer(replace(plan, replaces="" if there is None else there.fingerprint))

    def _with_tensors_kept(
        self, batch: Sequence[tuple[Inspected, StepPlan]], found: Mapping[StepKey, Commit]
    ) -> list[tuple[Inspected, StepPlan]]:
        """Return the batch; a step that has its tensors in the store is taken with them again."""
        kept = []
        for inspected, plan in batch:
            there = found.get(plan.key)
            loses = plan.without_tensors and there is not None and there.without_tensors is None
            kept.append((inspected, self._plan(inspected) if loses else plan))
        return kept

    def _is_to_be_offered(self, listing: Listing, plan: StepPlan, found: Commit | None) -> bool:
        """Whether a step is to be taken as it is planned, given the commit that the store has of it."""
        if found is not None and self.watcher.bad_files.learn(listing, found):
            self.watcher.forget(plan.key)
            self._view_is_fresh = False
            return False
        if self._stale_in_a_row(plan) >= _MAX_STALE:
            message = f"{plan.key}: workers see other files than this host"
            self._given_up.append(StepFailed(plan, ClusterError(message, hint=_STALE_HINT)))
            return False
        standing = Standing(self.committed, self.watcher.grid, self.replace, self.retention is not None)
        stays = standing.judge(listing.files, plan, found)
        if stays is None:
            return True
        if stays.error is not None:
            self._given_up.append(StepFailed(plan, stays.error))
        if stays.kept is not None:
            self._tell(stays.kept)
        if stays.has_changed:
            self._view_is_fresh = False
        return False

    def _believed(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, StepFailed):
            return outcome
        return replace(outcome, error=self.watcher.bad_files.believed(outcome.plan, outcome.error))

    def _stale_in_a_row(self, plan: StepPlan) -> int:
        name, times = self._stale.get(plan.key, ("", 0))
        return times if name == plan.fingerprint else 0

    def _go_on_after_outage(self) -> None:
        """Try at once what waited for the store."""
        self._tell(StoreRecovered())
        self.submitter.retry_now(StoreUnavailable)
        self._paused = {key: pause for key, pause in self._paused.items() if not pause.for_store}
        self.look_soon()

    def _note(self, outcome: Outcome) -> None:
        self._view_is_fresh = False
        key = outcome.plan.key
        if isinstance(outcome, StepFailed | TaskRetried):
            self._outage.report_failure(outcome.error)
        if isinstance(outcome, StepStale):
            self._stale[key] = (outcome.plan.fingerprint, self._stale_in_a_row(outcome.plan) + 1)
            self.watcher.forget(key)
        elif isinstance(outcome, StepCommitted):
            self._stale.pop(key, None)
            self.watcher.note_committed(key, outcome.plan.fingerprint)
            if key.step is None:
                pause_s = self._run_pauses.get(key, _RUN_PAUSE_S[0])
                self._paused[key] = _Pause(self.clock() + pause_s)
                self._run_pauses[key] = min(pause_s * 2, _RUN_PAUSE_S[1])
        elif isinstance(outcome, StepFailed) and self.watcher.bad_files.note(outcome.plan, outcome.error):
            self.watcher.forget(key)
        elif isinstance(outcome, StepFailed):
            self._stale.pop(key, None)
            waits_for_store = isinstance(outcome.error, StoreUnavailable)
            self._paused[key] = _Pause(self.clock() + _FAILED_PAUSE_S, waits_for_store)
        self._tell(outcome)

    def _drain(self, drain_s: float) -> None:
        until = self.clock() + drain_s
        while self.submitter.busy and self.clock() < until:
            self._drive(_TICK_S)
        self.submitter.cancel()

    def _tell_of_retention(self, event: Event) -> None:
        if isinstance(event, SourceDeleted):
            self._view_is_fresh = False
        self._tell(event)

    def _tell_trouble(self, error: StoreError | ClusterError) -> None:
        self._outage.report_failure(error)
        self._tell(DependencyDown(error))

    def _tell(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)
