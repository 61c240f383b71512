"""Which committed steps of a dump may be deleted. Arithmetic only: no disk, no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ingest.steps.keep_reasons import KeepReason, must_stay
from ingest.steps.newest import newest_steps
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.commit import Commit

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
