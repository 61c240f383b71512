"""Updates the state of a step after an outcome of its tasks."""

from __future__ import annotations

from dataclasses import replace

from ingest.dispatch.outcomes import Outcome, StepCommitted, StepFailed, StepStale
from ingest.steps.state import StepState
from workers.store.packed.pool import without_pool


def believable(outcome: Outcome, state: StepState) -> Outcome:
    """Return an outcome with the error to believe in."""
    if not isinstance(outcome, StepFailed):
        return outcome
    return replace(outcome, error=state.believable(outcome.error))


def settle(outcome: Outcome, state: StepState, now: float) -> None:
    """Record what came of a step: when it is tried again, and what is to be looked at before."""
    plan = outcome.plan
    match outcome:
        case StepStale():
            state.record_stale(plan.fingerprint)
        case StepCommitted(summary=summary):
            is_partial = summary.status == "partial"
            files = frozenset(entry.source for entry in plan.entries) if is_partial else frozenset()
            state.record_commit(without_pool(plan.fingerprint), now, files)
        case StepFailed(error=error) if not state.record_bad_file(plan, error):
            state.record_failure(error, now)
