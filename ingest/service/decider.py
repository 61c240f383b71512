"""Decides about complete steps: plans them, asks the store for their commits, and `ingest.steps.decide`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingest.planning.plan import times_rewritten
from ingest.service.planner import Planner
from ingest.steps.committed import Committed
from ingest.steps.decide import Decision, Inspect, Plan, Proposal, StepPolicy, decide
from ingest.steps.difference import CommittedFiles
from ingest.steps.state import StepState
from workers.errors import DamagedStore, StepRemoved
from workers.store.commit import Commit
from workers.tasks.model import StepPlan


@dataclass(frozen=True, slots=True)
class Decider:
    """Answers what `decide` asks. Reads the store, and changes nothing in it."""

    planner: Planner
    committed: Committed

    def plan(self, state: StepState, policy: StepPolicy, now: float) -> StepPlan:
        """Plan a step that is inspected and complete."""
        decision = decide(state, policy, now)
        assert isinstance(decision, Plan)  # noqa: S101 (for mypy)
        return self._plan(state, decision)

    def decide(
        self, planned: Sequence[tuple[StepState, StepPlan]], policy: StepPolicy, now: float
    ) -> list[tuple[StepState, Decision]]:
        """Decide about steps that were planned.

        Raises:
            StoreError: the store refused.
        """
        commits = self.committed.read([state.key for state, _ in planned])
        return [
            (state, self._decide(state, plan, commits.get(state.key), policy, now)) for state, plan in planned
        ]

    def _decide(
        self, state: StepState, plan: StepPlan, commit: Commit | None, policy: StepPolicy, now: float
    ) -> Decision:
        if commit is not None and (state.learn_poison(commit) or _learn_rewrites(state, plan, commit)):
            return Inspect()
        proposal = Proposal(
            plan,
            commit,
            lambda: self._was_removed(state, plan),
            lambda: self._committed_files(commit),
        )
        decision = decide(state, policy, now, proposal)
        if isinstance(decision, Plan):
            decision = decide(state, policy, now, replace(proposal, plan=self._plan(state, decision)))
        return decision

    def _plan(self, state: StepState, decision: Plan) -> StepPlan:
        assert state.inspected is not None  # noqa: S101 (for mypy: else it is not complete)
        return self.planner.plan(state.inspected, decision.leave_out_tensors, state.rewrites)

    def _was_removed(self, state: StepState, plan: StepPlan) -> bool:
        files = () if state.listing is None else state.listing.files
        return self.committed.was_removed(state.key, plan.fingerprint, files)

    def _committed_files(self, commit: Commit | None) -> CommittedFiles | DamagedStore | StepRemoved:
        if commit is None:
            return CommittedFiles()
        try:
            return self.committed.files_of(commit)
        except (DamagedStore, StepRemoved) as exc:
            return exc


def _learn_rewrites(state: StepState, plan: StepPlan, commit: Commit) -> bool:
    """Take over how often an earlier process found files rewritten; return whether that was news."""
    times = times_rewritten(plan.fingerprint, commit.fingerprint)
    if times:
        state.record_rewrites(times)
    return bool(times)
