"""Takes complete steps from the watcher to the workers: plans them, decides about them, offers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingest.dispatch.outcomes import StepFailed
from ingest.dispatch.submitter import Submitter
from ingest.planning.plan import plan_step, times_rewritten
from ingest.planning.pooling import Shared
from ingest.service.dependencies import Dependencies
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
from ingest.steps.events import DumpedAgain
from ingest.steps.state import StepState, Wait
from ingest.watching.watcher import Watcher
from workers.errors import ClusterError, DamagedStore, StepRemoved, StoreError
from workers.events import Observer
from workers.model import StepKey
from workers.store import commit
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
