"""Whether the evidence of an incident is safe: every rank has committed the step where it began.

Imports nothing that takes time: a training loop asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class CommittedStep(NamedTuple):
    """A step that a store has."""

    rank: int
    step: int
    committed_at_s: float
    """When, as a Unix time in seconds."""


def newest_steps(committed: Sequence[CommittedStep]) -> dict[int, int]:
    """Return the newest committed step of each rank."""
    newest: dict[int, int] = {}
    for each in committed:
        newest[each.rank] = max(newest.get(each.rank, -1), each.step)
    return newest


def has_evidence(committed: Sequence[CommittedStep], first_step: int, since: float) -> bool:
    """Return whether every rank has committed the first step of an incident, or a later one.

    Args:
        committed: the steps of a store.
        first_step: where the incident began.
        since: a Unix time in seconds: what was committed of this step before it does not count.
    """
    if any(newest < first_step for newest in newest_steps(committed).values()):
        return False
    return all(each.committed_at_s >= since for each in committed if each.step == first_step)
