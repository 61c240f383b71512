"""Which committed steps of a dump may be deleted. Arithmetic only: no disk, no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingest.steps.keep_reasons import KeepReason
from ingest.steps.newest import newest_steps
from workers.model import StepKey

#: Reasons that are no news: they stand for what was asked for, will pass, or are told in another way.
NO_NEWS = frozenset([KeepReason.NEWEST, KeepReason.UNDECIDED, KeepReason.READ_BACK_FAILED])


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What stays, beside what must."""

    keep_last: int = 1
    """So many of the newest steps of each rank. One at least: by it the rank is known, and where its run
    files are; and it may not be over."""
    keep_anomalous: bool = False
    """Steps with an anomaly on any rank of the dump."""

    def newest(self, keys: Iterable[StepKey]) -> set[StepKey]:
        """Return those of these steps that are the newest of their rank, by number."""
        return newest_steps(keys, max(self.keep_last, 1))
