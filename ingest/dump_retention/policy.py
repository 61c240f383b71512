"""Which committed steps of a dump may be deleted, and what is reported of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ingest.layouts.base import Listing
from ingest.steps.committed import Committed
from ingest.steps.difference import comes_from_other_dump
from ingest.steps.keeping import KeepReason, must_stay, newest_steps
from ingest.steps.state import StepState, StepTable
from workers.errors import DumpIngestError, UsageError
from workers.events import Event
from workers.model import StepKey
from workers.store.commit import Commit
from workers.store.model import Origin


@dataclass(frozen=True, slots=True)
class SourceDeleted(Event):
    """Source files were deleted; the commit of their step has every byte of them."""

    key: StepKey
    files: int
    nbytes: int
    seconds: float
    """Since the step was chosen to be read back."""
    dry_run: bool = False
    """Whether they only would have been deleted."""


@dataclass(frozen=True, slots=True)
class ReadBackFailed(Event):
    """A step could not be read back; nothing of it was deleted."""

    key: StepKey
    error: DumpIngestError
    pause_s: float | None
    """When it is tried again; None if it is not, as long as it stays as it is."""


@dataclass(frozen=True, slots=True)
class RetentionSeen(Event):
    """How much is still to be deleted: reported after each scan."""

    steps: int
    """Steps that wait to be read back, or are being read back."""
    nbytes: int


#: Reasons that are not reported: they are what was asked for, will pass, or are reported in another way.
NO_NEWS = frozenset([KeepReason.NEWEST, KeepReason.UNDECIDED, KeepReason.READ_BACK_FAILED])

WhyKept: TypeAlias = tuple[KeepReason, str]
"""The reason, and the same in words."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of a step of which the store has what the dump has."""

    commit: Commit | None
    """None if it cannot be read."""
    elsewhere: UsageError | None = None
    """Why the commit belongs to another dump."""
    is_newest: bool = False
    """Whether it is one of the newest steps of its rank, which are kept."""
    undecided: StepKey | None = None
    """The same step of another rank, of which it is not known yet whether it has an anomaly."""
    anomalous: StepKey | None = None
    """The same step, of this rank or another one, that has an anomaly."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What stays, besides what must."""

    keep_last: int = 1
    """This many of the newest steps of each rank stay. One at least: by it the rank is known, and where its
    run files are; and it may not be over."""
    keep_anomalous: bool = False
    """Whether steps with an anomaly on any rank of the dump stay."""

    def newest(self, keys: Iterable[StepKey]) -> set[StepKey]:
        """Return the steps among these that are the newest of their rank, by number."""
        return newest_steps(keys, max(self.keep_last, 1))

    def why_newest(self) -> WhyKept:
        """Return why one of the newest steps of a rank stays."""
        return KeepReason.NEWEST, f"of the newest {self.keep_last} of its rank"

    def why_kept(self, step: Candidate) -> WhyKept | None:
        """Return why the files of a step stay; None if they may be read back and deleted."""
        if step.is_newest:
            return self.why_newest()
        why_kept = must_stay(step.commit)
        if why_kept is None and step.elsewhere is not None:
            why_kept = KeepReason.ELSEWHERE, step.elsewhere.message
        if why_kept is None and self.keep_anomalous:
            why_kept = _why_anomalous(step)
        return why_kept


def _why_anomalous(step: Candidate) -> WhyKept | None:
    """Return why a step stays if those with an anomaly do."""
    if step.undecided is not None:
        return KeepReason.UNDECIDED, f"{step.undecided} is not committed yet; it may have an anomaly"
    if step.anomalous is not None:
        return KeepReason.ANOMALOUS, f"{step.anomalous} has an anomaly"
    return None


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
        return self.policy.newest(state.key for state in self.table if state.listing)

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
        anomalous = [other.key for other in alike if other.deletion.has_anomaly]
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
            and state.deletion.judged_files != state.listing.files
        ]
        commits = self.committed.read(list({*keys, *(state.key for state, _ in unknown)}))
        for state, files in unknown:
            state.deletion.judged_files = files
            state.deletion.has_anomaly = state.key in commits and commits[state.key].summary.is_anomalous
        return commits

    def _of_steps(self, steps: set[int | None]) -> list[StepState]:
        """Return these steps of all ranks of the dump."""
        return [state for state in self.table if state.key.step in steps]

    def _origin(self, listing: Listing) -> Origin:
        return Origin(listing.layout, self.host, str(self.root), listing.rank_from)
