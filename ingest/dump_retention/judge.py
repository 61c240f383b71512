"""Why the files of committed steps stay in the dump: asks the store for commits, and the policy for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingest.dump_retention.policy import Candidate, RetentionPolicy, WhyKept
from ingest.layouts.base import Listing
from ingest.steps.committed import Committed
from ingest.steps.keep_reasons import must_stay
from ingest.steps.other_dump import comes_from_other_dump
from ingest.steps.state import StepState
from ingest.steps.table import StepTable
from workers.model import StepKey
from workers.store.commit import Commit
from workers.store.model import Origin


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether the files of a step, as they were listed, may go."""

    state: StepState
    listing: Listing
    commit: Commit | None
    why_kept: WhyKept | None
    """None if they may."""


@dataclass(frozen=True, slots=True)
class SourceJudge:
    """Decides about the source files of steps that the store held at the last scan."""

    table: StepTable
    committed: Committed
    root: Path
    """The dump."""
    host: str
    policy: RetentionPolicy

    def newest(self) -> set[StepKey]:
        """Return the steps that stay because they are the newest of their rank."""
        return self.policy.newest(state.key for state in self.table.present())

    def judge(self, states: Iterable[StepState]) -> list[Judged]:
        """Decide about steps that are not among the newest of their rank.

        Steps that are pending by now are left out.

        Raises:
            StoreError: the store refused.
        """
        held = [
            (state, state.listing) for state in states if state.listing is not None and not state.is_pending
        ]
        commits = self._commits([state.key for state, _ in held])
        judged = []
        for state, listing in held:
            commit = commits.get(state.key)
            why_kept = self.policy.why_kept(self._candidate(state, listing, commit))
            judged.append(Judged(state, listing, commit, why_kept))
        return judged

    def may_go(self, listing: Listing, commit: Commit | None, fingerprint: str) -> bool:
        """Return whether the files of a step may still go, given its commit just before they are unlinked."""
        return (
            commit is not None
            and commit.fingerprint == fingerprint
            and must_stay(commit) is None
            and comes_from_other_dump(listing.key, self._origin(listing), commit) is None
        )

    def _candidate(self, state: StepState, listing: Listing, commit: Commit | None) -> Candidate:
        elsewhere = (
            None if commit is None else comes_from_other_dump(state.key, self._origin(listing), commit)
        )
        if not self.policy.keep_anomalous:
            return Candidate(commit, elsewhere)
        alike = self._of_steps({state.key.step})
        undecided = [other.key for other in alike if other.is_pending or other.is_unchecked]
        anomalous = [other.key for other in alike if other.deletion and other.deletion.has_anomaly]
        return Candidate(
            commit, elsewhere, undecided=next(iter(undecided), None), anomalous=next(iter(anomalous), None)
        )

    def _commits(self, keys: Sequence[StepKey]) -> Mapping[StepKey, Commit]:
        """Return the commits of steps, and of the same steps of other ranks if those matter."""
        if not self.policy.keep_anomalous:
            return self.committed.read(keys)
        # What is pending has no commit, or one of other files: nothing is to be remembered of that.
        unknown = [
            (state, state.listing.files)
            for state in self._of_steps({key.step for key in keys})
            if state.listing is not None
            and not state.is_pending
            and not state.for_deletion().is_anomaly_known(state.listing.files)
        ]
        commits = self.committed.read(list({*keys, *(state.key for state, _ in unknown)}))
        for state, files in unknown:
            is_anomalous = state.key in commits and commits[state.key].summary.is_anomalous
            state.for_deletion().anomaly = files, is_anomalous
        return commits

    def _of_steps(self, steps: set[int | None]) -> list[StepState]:
        """Return these steps of all ranks of the dump."""
        return [state for state in self.table if state.key.step in steps]

    def _origin(self, listing: Listing) -> Origin:
        return Origin(listing.layout, self.host, str(self.root), listing.rank_from)
