"""When is a step complete? No dump system says so; content, later steps and silence do.

A tensor file is whole when its header accounts for its size. A step is complete when its files are whole and
either a later step of its rank has begun or nothing has changed for a quiet period. A file that stays short
through the quiet period will not grow any more: it is quarantined, and the step commits without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ingest.layouts.base import Listing
from ingest.planning.inspection import Inspected
from ingest.steps.caches import keep_only
from workers.model import SourceFile, StepKey


@dataclass(frozen=True, slots=True)
class CompletenessPolicy:
    """How long silence must last."""

    quiet_s: float = 10.0
    """Without a later step: how long nothing may have changed."""
    settle_s: float = 1.0
    """With a later step: the same; covers graphs that take turns in one directory."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a step is not taken yet."""

    reason: str


class QuietClock:
    """Remembers since when each step has not changed.

    Two clocks are compared only where nothing else is known: a step seen for the first time has been quiet
    since its newest change, by the clock of its file system. From then on only what is observed counts.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._seen: dict[StepKey, tuple[tuple[SourceFile, ...], float]] = {}

    def quiet_for(self, listing: Listing) -> float:
        """Return for how many seconds the files of this listing have been as they are."""
        now = self._monotonic()
        before = self._seen.get(listing.key)
        if before is None:
            age = max(self._wall() - listing.newest_change, 0.0)
            self._seen[listing.key] = (listing.files, now - age)
            return age
        files, since = before
        if files != listing.files:
            self._seen[listing.key] = (listing.files, now)
            return 0.0
        return now - since

    def forget(self, present: Collection[StepKey]) -> None:
        """Drop what is remembered of steps that are not `present` any more."""
        keep_only(present, self._seen)


def waits_for_time(listing: Listing, quiet_for_s: float, policy: CompletenessPolicy) -> Waiting | None:
    """Return why a step cannot be complete yet, before any file of it is opened; None when it may be.

    Run files are never complete while the job runs: they are taken as they are in a short silence.
    """
    if not listing.files:
        return Waiting("no files yet")
    short = listing.later_begun or listing.key.step is None
    wanted = min(policy.settle_s, policy.quiet_s) if short else policy.quiet_s
    if quiet_for_s >= wanted:
        return None
    return Waiting(f"quiet for {quiet_for_s:.1f} s of {wanted:g} s")


def waits_for_content(inspected: Inspected, quiet_for_s: float, policy: CompletenessPolicy) -> Waiting | None:
    """Return why a step whose time has come is not complete, by the content of its files; None when it is."""
    if quiet_for_s < policy.quiet_s and (path := inspected.unfinished):
        return Waiting(f"{path} is not whole yet")
    return None
