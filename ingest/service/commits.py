"""Commits as this process sees them: those that workers made are read back, and older ones again in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ingest.dispatch.outcomes import Outcome, StepCommitted, StepFailed
from ingest.service.dependencies import Dependencies
from ingest.steps.committed import Committed
from workers.errors import StoreError
from workers.model import StepKey
from workers.store.commit import Commit

#: How often commits are read again, and how many: 10,000 within 40 minutes.
_RECHECK_S = 60.0
_RECHECKED = 256
#: How long the store is asked for commits between two checks for finished tasks, in seconds.
CHECK_S = 0.05
_ELSEWHERE_HINT = "A directory as store must be the same one for the workers; else use a URL such as s3://..."


@dataclass(slots=True)
class CommitChecks:
    """Checks what is committed, as this process sees it."""

    committed: Committed
    dependencies: Dependencies
    clock: Callable[[], float] = time.monotonic
    _next_recheck: float | None = None

    def ask(self) -> bool:
        """Ask the store for a part of what it has of the dump; return whether that was necessary."""
        if self.committed.is_checked:
            return False
        try:
            self.committed.check(CHECK_S)
        except StoreError as exc:
            self.dependencies.endure(exc)
            return False
        return True

    def confirm(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes; a commit that workers made and this process cannot see is a failure."""
        keys = [outcome.plan.key for outcome in outcomes if isinstance(outcome, StepCommitted)]
        try:
            commits = self.committed.read(keys)
        except StoreError as exc:
            self.dependencies.report(exc)
            return list(outcomes)
        return [
            _as_seen(outcome, commits) if isinstance(outcome, StepCommitted) else outcome
            for outcome in outcomes
        ]

    def recheck(self) -> list[StepKey]:
        """Read some commits again if it is time to; return the steps of which an older one came back."""
        now = self.clock()
        if self._next_recheck is None:  # at first all was just read
            self._next_recheck = now + _RECHECK_S
        if now < self._next_recheck:
            return []
        self._next_recheck = now + _RECHECK_S
        try:
            return self.committed.recheck(_RECHECKED)
        except StoreError as exc:
            self.dependencies.report(exc)
            return []


def _as_seen(outcome: StepCommitted, commits: Mapping[StepKey, Commit]) -> Outcome:
    plan = outcome.plan
    commit = commits.get(plan.key)
    if commit is not None and plan.fingerprint in commit.record.generations:
        return outcome
    message = f"{plan.key}: the workers committed it, but it is not in {plan.store.url} as seen from here"
    return StepFailed(plan, StoreError(message, hint=_ELSEWHERE_HINT))
