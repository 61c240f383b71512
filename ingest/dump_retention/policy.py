"""Which committed steps of a dump may be deleted, and what is reported of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ingest.layouts.base import Listing
from ingest.steps.committed import Committed, comes_from_other_dump
from ingest.steps.events import KeepReason, must_stay, newest_steps
from ingest.steps.state import StepState, StepTable
from workers.errors import DumpIngestError
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
class RetentionPolicy:
    """What stays, besides what must."""

    keep_last: int = 1
    """This many of the newest steps of each rank stay. One at least: by it the rank is known, and where its
    run files are; and it may not be over."""
    keep_anomalous: bool = False
    """Whether steps with an anomaly on any rank of the dump stay."""

    @property
    def why_newest(self) -> WhyKept:
        """Why one of the newest steps of a rank stays."""
        return KeepReason.NEWEST, f"of the newest {self.keep_last} of its rank"


@dataclass(frozen=True, slots=True)
class SourceJudge:
    """Decides about the source files of steps that the store held at the last scan."""

    table: StepTable
    committed: Committed
    root: Path
    host: str
    policy: RetentionPolicy

    def newest(self) -> set[StepKey]:
        """Return the steps that stay because they are the newest of their rank, by number."""
        keys = (state.key for state in self.table if state.listing)
        return newest_steps(keys, max(self.policy.keep_last, 1))

    def judge(
        self, states: Iterable[StepState]
    ) -> list[tuple[StepState, Listing, Commit | None, WhyKept | None]]:
        """Decide about steps that are not among the newest of their rank.

        Returns:
            For each step that is not pending by now: its files as they were listed, its commit, and why the
            files stay; None if they may go.

        Raises:
            StoreError: the store refused.
        """
        held = [
            (state, state.listing) for state in states if state.listing is not None and not state.is_pending
        ]
        commits = self._commits([state.key for state, _ in held])
        return [
            (state, listing, commit, self._why_kept(listing, commit))
            for state, listing in held
            for commit in [commits.get(state.key)]
        ]

    def may_go(self, listing: Listing, commit: Commit | None, fingerprint: str) -> bool:
        """Return whether the files of a step may still go, given its commit just before they are unlinked."""
        return (
            commit is not None
            and commit.fingerprint == fingerprint
            and self._why_must_stay(listing, commit) is None
        )

    def _why_must_stay(self, listing: Listing, commit: Commit | None) -> WhyKept | None:
        why_kept = must_stay(commit)
        if commit is None or why_kept is not None:
            return why_kept
        origin = Origin(listing.layout, self.host, str(self.root), listing.rank_from)
        elsewhere = comes_from_other_dump(listing.key, origin, commit)
        return None if elsewhere is None else (KeepReason.ELSEWHERE, elsewhere.message)

    def _why_kept(self, listing: Listing, commit: Commit | None) -> WhyKept | None:
        if (why_kept := self._why_must_stay(listing, commit)) or not self.policy.keep_anomalous:
            return why_kept
        alike = self._of_steps({listing.key.step})
        for other in alike:
            if other.is_pending or other.is_unchecked:
                return KeepReason.UNDECIDED, f"{other.key} is not committed yet; it may have an anomaly"
        anomalous = (other.key for other in alike if other.deletion.has_anomaly)
        return next(((KeepReason.ANOMALOUS, f"{key} has an anomaly") for key in anomalous), None)

    def _commits(self, keys: Sequence[StepKey]) -> Mapping[StepKey, Commit]:
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
        return [state for state in self.table if state.key.step in steps]
