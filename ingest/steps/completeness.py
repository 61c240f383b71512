"""When is a step complete? No dump system says so; content, later steps and silence do.

A tensor file is whole when its header accounts for its size. A step is complete when its files are whole and
nothing has changed for a quiet period; for a shorter one (`settle_s`), if each of its directories has a later
step with files. A file that stays short through the quiet period will not grow any more: it is quarantined,
and the step commits without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingest.layouts.base import Listing
from ingest.planning.inspection import Inspected
from ingest.steps.phases import Wait, WaitFor


@dataclass(frozen=True, slots=True)
class CompletenessPolicy:
    """How long silence must last."""

    quiet_s: float = 10.0
    """How long a step must have been unchanged to count as complete, without a later one; in seconds."""
    settle_s: float = 1.0
    """With a later step: the same; covers graphs that take turns in one directory."""


def waits_for_time(listing: Listing, quiet_for_s: float, policy: CompletenessPolicy) -> Wait | None:
    """Return why a step cannot be complete yet, before any file of it is opened; None if it may be.

    Run files are never complete while the job runs: they are taken as they are in a short silence.
    """
    if not listing.files:
        return Wait(WaitFor.FILES, "no files yet")
    short = listing.later_begun or listing.key.step is None
    wanted = min(policy.settle_s, policy.quiet_s) if short else policy.quiet_s
    if quiet_for_s >= wanted:
        return None
    return Wait(WaitFor.TIME, f"quiet for {quiet_for_s:.1f} s of {wanted:g} s")


def waits_for_content(inspected: Inspected, quiet_for_s: float, policy: CompletenessPolicy) -> Wait | None:
    """Return why a step whose time has come is not complete, by the content of its files; None if it is."""
    if quiet_for_s < policy.quiet_s and (path := inspected.unfinished):
        return Wait(WaitFor.CONTENT, f"{path} is not whole yet")
    return None
