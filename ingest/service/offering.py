"""Takes complete steps from the watcher to the workers: plans them, decides about them, offers them.

A store or a cluster that does not answer is reported, and waited for or given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingest.dispatch.outcomes import StepFailed
from ingest.dispatch.submitter import Submitter
from ingest.planning.plan import plan_step, times_rewritten
from ingest.planning.pooling import Shared
from ingest.service.options import ServiceOptions
from ingest.steps.committed import Committed
from ingest.steps.decide import (
    Decision,
    Inspect,
    KeepExisting,
    Offer,
    Plan,
    Proposal,
    Refuse,
    StepPolicy,
    decide,
)
from ingest.steps.difference import CommittedFiles
from ingest.steps.events import DependencyDown, DumpedAgain
from ingest.steps.state import StepState, Wait
from ingest.watching.watcher import Watcher
from workers.errors import ClusterError, DamagedStore, StepRemoved, StoreError, StoreUnavailable
from workers.events import Observer
from workers.model import StepKey
from workers.store import commit
from workers.store.backends.wrappers import Outage
from workers.store.commit import Commit
from workers.store.model import Origin
from workers.tasks.model import StepPlan

#: Steps under way at once, and rows of their plans; more only wait in memory.
MAX_STEPS_UNDER_WAY = 256
MAX_ROWS_UNDER_WAY = 200_000
#: Steps that are planned before they are offered, and for how long: the store is asked for all at once, but
#: workers must not wait for the last.
_BATCH = 16
_BATCH_S = 0.1


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans complete steps, and answers what `decide` asks. Reads the store, and changes nothing in it."""

    root: Path
    """The dump."""
    committed: Committed
    options: ServiceOptions
    shared: Callable[[StepKey], Shared] | None = None
    """Tells what goes into the pool; None if nothing does."""

    def plan(self, state: StepState, policy: StepPolicy, now: float) -> StepPlan:
        """Plan a step that is inspected and complete."""
        decision = decide(state, policy, now)
        assert isinstance(decision, Plan)  # noqa: S101 (for mypy)
        return self._plan(state, decision.leave_out_tensors)

    def decide(
        self, planned: Sequence[tuple[StepState, StepPlan]], policy: StepPolicy, now: float
    ) -> list[Decision]:
        """Decide about steps that were planned.

        Raises:
            StoreError: the store refused.
        """
        commits = self.committed.read([state.key for state, _ in planned])
        return [self._decide(state, plan, commits.get(state.key), policy, now) for state, plan in planned]

    def _decide(
        self, state: StepState, plan: StepPlan, commit: Commit | None, policy: StepPolicy, now: float
    ) -> Decision:
        if commit is not None:
            # What an earlier process found out: bad files, and how often files were rewritten.
            if state.learn_poison(commit):
                return Inspect()
            if times := times_rewritten(plan.fingerprint, commit.fingerprint):
                state.record_rewrites(times)
                return Inspect()
        files = () if state.listing is None else state.listing.files
        proposal = Proposal(
            plan,
            commit,
            lambda: self.committed.was_removed(state.key, plan.fingerprint, files),
            lambda: self._committed_files(commit),
        )
        decision = decide(state, policy, now, proposal)
        if isinstance(decision, Plan):
            again = self._plan(state, decision.leave_out_tensors)
            decision = decide(state, policy, now, replace(proposal, plan=again))
        return decision

    def _plan(self, state: StepState, leave_out_tensors: str) -> StepPlan:
        inspected, options = state.inspected, self.options
        assert inspected is not None  # noqa: S101 (for mypy: else it is not complete)
        listing = inspected.listing
        return plan_step(
            inspected,
            Origin(listing.layout, options.host, str(self.root), listing.rank_from),
            self.committed.objects.address,
            options.grid,
            options.rules,
            leave_out_tensors=leave_out_tensors,
            rewrites=state.rewrites,
            sketches=options.sketches,
            marginals=options.marginals,
            shared=None if self.shared is None or leave_out_tensors else self.shared(listing.key),
        )

    def _committed_files(self, commit: Commit | None) -> CommittedFiles | DamagedStore | StepRemoved:
        if commit is None:
            return CommittedFiles()
        try:
            return self.committed.files_of(commit)
        except (DamagedStore, StepRemoved) as exc:
            return exc


@dataclass(slots=True)
class Offering:
    """Offers to the workers the complete steps that are to be taken, as many as there is room for."""

    watcher: Watcher
    planner: Planner
    submitter: Submitter
    dependencies: Dependencies
    notify: Observer
    outdate: Callable[[], object]
    """Called when the last scan does not hold any more."""
    clock: Callable[[], float]
    has_begun: bool = False
    """Whether cluster and store have answered once, so that anything may have been written."""
    _refused: list[StepFailed] = field(default_factory=list)

    def offer(self, policy: StepPolicy) -> bool:
        """Offer some steps that are complete; return whether there may be more."""
        started = self.clock()
        planned: list[tuple[StepState, StepPlan]] = []
        while self._has_room(planned):
            if len(planned) == _BATCH or (planned and self.clock() > started + _BATCH_S):
                self._offer(planned, policy, started)
                return True
            state = self.watcher.next_complete(policy, started)
            if state is None:
                break
            planned.append((state, self.planner.plan(state, policy, started)))
        if planned:
            self._offer(planned, policy, started)
        return False

    def take_refused(self) -> list[StepFailed]:
        """Return the steps that were not even offered since this was asked last."""
        refused, self._refused = self._refused, []
        return refused

    def _has_room(self, planned: Sequence[tuple[StepState, StepPlan]]) -> bool:
        """Return whether there is room for a step more than those that are under way, and these."""
        submitter = self.submitter
        steps = submitter.offered_steps + len(planned)
        return not steps or (
            steps < MAX_STEPS_UNDER_WAY
            and submitter.offered_rows + sum(len(plan.entries) for _, plan in planned) < MAX_ROWS_UNDER_WAY
            and submitter.unread_nbytes + sum(plan.nbytes for _, plan in planned)
            < submitter.limits.inflight_nbytes
        )

    def _offer(self, planned: Sequence[tuple[StepState, StepPlan]], policy: StepPolicy, now: float) -> None:
        try:
            if not self.has_begun:
                self.submitter.client()
                commit.ensure_root(self.planner.committed.objects)
                self.has_begun = True
            decisions = self.planner.decide(planned, policy, now)
        except (StoreError, ClusterError) as exc:
            self.dependencies.endure(exc)
            return
        for (state, plan), decision in zip(planned, decisions, strict=True):
            self._carry_out(state, plan, decision)

    def _carry_out(self, state: StepState, plan: StepPlan, decision: Decision) -> None:
        match decision:
            case Offer(plan=offered, shrinks_by=gone):
                self.submitter.offer(offered)
                if gone:
                    self.notify(DumpedAgain(state.key, gone))
            case KeepExisting(cover=cover, event=event):
                state.cover = cover
                if event is not None:
                    self.notify(event)
            case Refuse(error=error):
                self._refused.append(StepFailed(plan, error))
            case Inspect() | Wait():
                self.outdate()


#: How long after an answer that did not come the store is asked again.
_PAUSE_S = 1.0


@dataclass(slots=True)
class StoreProbe:
    """Asks a store that failed whether it answers, until it does.

    Work that failed waits longer and longer, so as not to burden a store in distress; without this, it would
    go on waiting long after the store is back.
    """

    ask: Callable[[], object]
    """Reads something small from the store, or raises StoreError."""
    pause_s: float = _PAUSE_S
    clock: Callable[[], float] = time.monotonic
    away_since: float | None = None
    """By the monotonic clock: since when the store has failed; None if it answers."""
    error: StoreUnavailable | None = None
    """What it failed with first."""
    _over: threading.Event = field(default_factory=threading.Event)
    _pause: threading.Event = field(default_factory=threading.Event)
    """Never set: to wait for it is to sleep. `time.sleep` fails where a clock is moved under a process."""
    _thread: threading.Thread | None = None

    @property
    def away_s(self) -> float:
        """For how long the store has failed; 0 if it answers."""
        since = self.away_since
        return 0.0 if since is None else self.clock() - since

    def report_failure(self, error: Exception) -> None:
        """Begin to ask, if this error says that the store did not answer and nobody asks yet."""
        if not isinstance(error, StoreUnavailable) or (self._thread is not None and self._thread.is_alive()):
            return
        self.away_since, self.error = self.clock(), error
        self._thread = threading.Thread(target=self._ask, name="outage", daemon=True)
        self._thread.start()

    def poll_recovered(self) -> bool:
        """Return whether the store was away and is back since; true once for each time."""
        if not self._over.is_set():
            return False
        self._over.clear()
        return True

    def _ask(self) -> None:
        started = time.monotonic()
        while True:
            try:
                self.ask()
            except StoreUnavailable:
                self._pause.wait(self.pause_s)
            except StoreError:
                self.away_since = None
                return  # it answers, and waiting does not help
            else:
                break
        self.away_since = None
        # A store that answers at once may refuse writes, or be too busy for them: then pauses are right.
        # Clients ask again by themselves, so an answer that took long did not come at first.
        if time.monotonic() - started >= self.pause_s:
            self._over.set()


#: After how many seconds without an answer of the store a small request is made: so a silent store is noticed
#: within a minute, even if there is nothing to do.
_LISTENS_S = 30.0


@dataclass(slots=True)
class Dependencies:
    """Store and cluster, as far as the service has to wait for them."""

    notify: Observer
    probe: StoreProbe
    retry_forever: bool = False
    """Whether to wait for what does not answer, rather than raise."""
    gives_up_s: float = 60.0
    """How long a store may be away for those who do not wait for ever, in seconds."""
    outage: Outage = field(default_factory=Outage)
    """Whether the store has fallen silent: it is asked by the probe alone then."""
    ask: Callable[[], object] = lambda: None
    """Reads something small from the store, for a bounded time, or raises StoreError."""
    clock: Callable[[], float] = time.monotonic
    _listened_at: float | None = None

    def tend(self) -> None:
        """Notice a store that has fallen silent, and have a silent one asked until it answers.

        Raises:
            StoreUnavailable: it was away for too long, and the service does not wait for ever.
        """
        if self.outage.error is not None:
            self.probe.report_failure(self.outage.error)
        else:
            now = self.clock()
            self._listened_at = now if self._listened_at is None else self._listened_at
            if now - max(self._listened_at, self.outage.answered_at) > _LISTENS_S:
                self._listened_at = now
                try:
                    self.ask()
                except StoreError as exc:
                    self.report(exc)
        error = self.probe.error
        if not self.retry_forever and error is not None and self.probe.away_s > self.gives_up_s:
            raise StoreUnavailable(
                f"{error.message}; gave up after {self.probe.away_s:.0f} s more", hint=error.hint
            )

    @property
    def is_store_silent(self) -> bool:
        """Whether the store has accepted a request without an answer, and has not answered since."""
        return self.outage.error is not None

    def endure(self, error: StoreError | ClusterError) -> None:
        """Report an error, so that the same is tried again; raise it unless everything is tried for ever."""
        if not self.retry_forever:
            raise error
        self.report(error)

    def report(self, error: StoreError | ClusterError) -> None:
        """Report an error; if the store did not answer, begin to ask when it is back."""
        self.probe.report_failure(error)
        self.notify(DependencyDown(error))
