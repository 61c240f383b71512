"""Takes complete steps from the watcher to the workers, as many as there is room for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ingest.dispatch.outcomes import StepFailed
from ingest.dispatch.submitter import Submitter
from ingest.service.decider import Decider
from ingest.service.dependencies import Dependencies
from ingest.service.scan_schedule import ScanSchedule
from ingest.steps.decide import Decision, Inspect, KeepExisting, Offer, Refuse, StepPolicy
from ingest.steps.events import DumpedAgain
from ingest.steps.state import StepState, Wait
from ingest.watching.watcher import Watcher
from workers.errors import ClusterError, StoreError
from workers.events import Observer
from workers.store import commit
from workers.tasks.model import StepPlan

#: Steps under way at once, and rows of their plans; more only wait in memory.
MAX_STEPS_UNDER_WAY = 256
MAX_ROWS_UNDER_WAY = 200_000
#: Steps that are planned before they are offered, and for how long: the store is asked for all at once, but
#: workers must not wait for the last.
_BATCH = 16
_BATCH_S = 0.1


@dataclass(slots=True)
class Offering:
    """Decides about the steps that are complete, and offers to the workers those that are to be taken."""

    watcher: Watcher
    decider: Decider
    submitter: Submitter
    dependencies: Dependencies
    schedule: ScanSchedule
    notify: Observer
    clock: Callable[[], float] = time.monotonic
    _is_prepared: bool = False
    """Whether cluster and store have answered once, so that steps can be offered."""
    _refused: list[StepFailed] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        """Whether anything may have been written."""
        return self._is_prepared

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
            planned.append((state, self.decider.plan(state, policy, started)))
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
            self._prepare()
            decisions = self.decider.decide(planned, policy, now)
        except (StoreError, ClusterError) as exc:
            self.dependencies.endure(exc)
            return
        for (state, plan), (_, decision) in zip(planned, decisions, strict=True):
            self._carry_out(state, plan, decision)

    def _prepare(self) -> None:
        if not self._is_prepared:
            self.submitter.prepare()
            commit.ensure_root(self.decider.committed.objects)
            self._is_prepared = True

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
                self.schedule.outdate()
