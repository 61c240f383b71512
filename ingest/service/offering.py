"""Takes complete steps from the watcher to the workers: plans them, decides about them, offers them.

A store or a cluster that does not answer is reported, and waited for or given up.

What the ranks of a run share, as its consolidated view shows it, goes into the pool of a step.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import xxhash

from ingest.disk import Pressure
from ingest.dispatch.submitter import DispatchLimits, StepFailed, Submitter
from ingest.dump_retention.policy import RetentionPolicy
from ingest.planning.inspection import Inspected
from ingest.planning.plan import plan_rows, plan_step, times_rewritten
from ingest.planning.pooling import Shared, shared_in_step, shared_tensors
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
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
from ingest.steps.events import DependencyDown, DumpedAgain
from ingest.steps.state import StepState, Wait
from ingest.steps.watcher import QuietClock, Watcher
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.marginals import MarginalScope
from workers.dump.source import OpenFile
from workers.errors import (
    AccessDenied,
    ClusterError,
    DamagedStore,
    SourceChanged,
    StoreError,
    StoreUnavailable,
)
from workers.events import Observer
from workers.model import MIB, StepKey
from workers.rules.values import RuleSet
from workers.store import commit
from workers.store.backends.wrappers import Outage
from workers.store.commit import Commit
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import Grid, Origin
from workers.store.objects import ObjectStore
from workers.tasks.model import Entry, StepPlan


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Everything that may be chosen; `ingest.wiring.services` derives it from the settings."""

    policy: StepPolicy = field(default_factory=StepPolicy)
    grid: Grid = field(default_factory=Grid)
    limits: DispatchLimits = field(default_factory=lambda: DispatchLimits(1024 * MIB))
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a worker must offer to be given a task, as Dask counts resources."""
    host: str = field(default_factory=socket.gethostname)
    """What this host is called in commits: device ids mean something on their host only."""
    rules: RuleSet | None = None
    poll_s: float = 1.0
    retry_forever: bool = False
    """Whether to wait for a store or cluster that does not answer, rather than raise."""
    take_removed: bool = False
    pressure: Pressure | None = None
    continues: frozenset[str] = frozenset()
    """Other directories whose steps are those of this dump."""
    recheck_rate: float = 0.0
    """How many bytes per second of committed files are read again while nothing else is to be done; 0 for
    none, infinity for all of them, once."""
    retention: RetentionPolicy | None = None
    dry_run: bool = False
    patience_s: float = 60.0
    """How long the loop waits for an answer of the store, in seconds. One that gives up does so after as long
    again."""
    task_timeout_s: float = 600.0
    """How long a task may run on one worker, besides a second for each MiB that it reads."""
    sketches: bool = False
    marginals: MarginalScope = MarginalScope.NONE
    pool: bool = False
    black_box: int | None = None
    """How many steps of each rank have tensors, besides those around incidents; None for all."""
    quiet_clock: QuietClock = field(default_factory=QuietClock)
    clock: Callable[[], float] = time.monotonic


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
            lambda: self.committed.files_of(commit),
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
    refused: list[StepFailed] = field(default_factory=list)
    """The steps that were not even offered, for the caller to take."""

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

    def _has_room(self, planned: Sequence[tuple[StepState, StepPlan]]) -> bool:
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
                self.refused.append(StepFailed(plan, error))
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
    pause_s: float = _PAUSE_S
    clock: Callable[[], float] = time.monotonic
    away_since: float | None = None
    """By the monotonic clock: since when the store has failed; None if it answers."""
    error: StoreUnavailable | None = None
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


#: The digests of one step that are read at once: 1500 ranks of 5000 tensors. Larger runs share nothing.
_MOST_NBYTES = 128 * MIB
#: With more earlier steps than this, only every sixteenth of them is looked into.
_INTERVAL = 16


@dataclass(eq=False)
class SharedTensors:
    """Tells what a rank is expected to share in a step. Not safe to share between threads.

    Takes a request for each step that the view has gained, one or two for each earlier step that is looked
    into, and one more for each rank there. Memory: the names of the tensors; while digests are read, twice
    theirs, up to 256 MiB.
    """

    objects: ObjectStore
    _cubes: ConsolidatedCubes | None = None
    _keys: list[TensorKey] = field(default_factory=list)
    _asked_for: int | None = None
    """The step that the view was opened for."""
    _known: dict[tuple[str, int, int], Shared] = field(default_factory=dict)
    """By epoch of the view, place of the earlier step, and rank."""

    def of(self, key: StepKey) -> Shared:
        """Return the tensors expected to be shared; none if the view has no earlier step, or cannot be read.

        The expectation decides where bytes are stored, never which: without it, the rank stores its own.
        """
        if key.step is None:
            return {}
        try:
            if key.step != self._asked_for:
                self._open(key.step)
            return self._expected(key.rank, key.step)
        except (DamagedStore, StoreError):
            self._asked_for = None  # the next step asks again
            return {}

    def _open(self, step: int) -> None:
        before, self._cubes = self._cubes, open_cubes(self.objects)
        self._asked_for = step
        if before is None or self._cubes is None:
            return
        was, now = before.state, self._cubes.state
        if now.epoch != was.epoch:
            self._keys = []
        elif now.revision == was.revision:
            self._cubes = before  # with what was read of it

    def _expected(self, rank: int, step: int) -> Shared:
        cubes = self._cubes
        if cubes is None or cubes.state.ranks * cubes.state.tensors * DIGEST_BYTES > _MOST_NBYTES:
            return {}
        ranks = cubes.ranks.tolist()
        if rank not in ranks or len(ranks) == 1:  # nobody to share with: no digests are read
            return {}
        for place in _places_to_ask(cubes, step):
            known = (cubes.state.epoch, place, rank)
            if known not in self._known:
                shared = shared_tensors(self._tensors(cubes), cubes.cube("digest", place), ranks.index(rank))
                # Of each rank, only what was asked for last.
                self._known = {name: was for name, was in self._known.items() if name[2] != rank}
                self._known[known] = shared
            if self._known[known]:
                return self._known[known]
        return {}

    def _tensors(self, cubes: ConsolidatedCubes) -> list[TensorKey]:
        """Return the axis of tensors, which only grows; it takes nine requests."""
        if len(self._keys) < cubes.state.tensors:
            self._keys = cubes.axis.keys
        return self._keys[: cubes.state.tensors]


def _places_to_ask(cubes: ConsolidatedCubes, step: int) -> list[int]:
    """Return the places of the earlier steps to look into, in this order.

    Watchers that open the view at different times should look into the same step, because units are named by
    what was equal there. So it is not the latest one, but one that stays for a while: the 1st, 2nd, 4th, 8th
    of the earlier steps, and then each 16th. If the rank shares nothing there, it is the latest one.
    """
    rewriting = set(cubes.state.rewriting)
    steps = cubes.steps
    places = [place for place in np.argsort(steps).tolist() if steps[place] < step and place not in rewriting]
    if not places:
        return []
    last = len(places) - 1
    chosen = last - last % _INTERVAL if last >= _INTERVAL else 1 << last.bit_length() - 1 if last else 0
    return list(dict.fromkeys([places[chosen], places[-1]]))


#: Bytes of a payload that are read in its middle, and as many at its end.
_PROBE_NBYTES = 1024


@dataclass(eq=False)
class SharedInDump:
    """Tells what ranks of one dump are expected to share in a step that all of them have.

    By a few bytes of each tensor, so nothing needs to be stored before. Memory: the names of the tensors of
    the ranks that are compared, of one step.
    """

    root: Path
    grid: Grid
    complete: Callable[[StepKey], Sequence[Inspected]]
    """Returns the step of a rank, and the same of the other ranks that are complete and not taken yet."""
    _step: int | None = None
    _known: dict[int, Shared] = field(default_factory=dict)

    def of(self, key: StepKey) -> Shared:
        """Return the tensors that are expected to be shared; none for files that belong to no step."""
        if key.step is None:
            return {}
        if self._step != key.step:
            self._step, self._known = key.step, {}
        if key.rank not in self._known:
            ranks = self.complete(key)
            rows = map(plan_rows, ranks if len(ranks) > 1 else ())
            entries = [([row.entry for row in of_rank], [row.sample for row in of_rank]) for of_rank in rows]
            keys = [inspected.listing.key for inspected in ranks]
            shared = shared_in_step(entries, self.grid, lambda place, entry: self._probe(keys[place], entry))
            self._known |= {key.rank: {}} | {key.rank: own for key, own in zip(keys, shared, strict=False)}
        return self._known[key.rank]

    def _probe(self, key: StepKey, entry: Entry) -> int | None:
        middle, last = entry.nbytes // 2, entry.nbytes - _PROBE_NBYTES
        try:
            with OpenFile(self.root, entry.source, str(key)) as file:
                read = [file.read_at(entry.offset + at, _PROBE_NBYTES) for at in (middle, last)]
        except (AccessDenied, SourceChanged, OSError):  # whoever converts it says so
            return None
        return xxhash.xxh3_64_intdigest(b"".join(read))
