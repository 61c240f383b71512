"""Whether the evidence of an incident is safe: every rank has committed the step where it began.

Imports nothing that takes time: a training loop asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self


class CommittedStep(NamedTuple):
    """A step that a store has."""

    rank: int
    step: int
    committed_at_s: float
    """When, as a Unix time in seconds."""


@dataclass(frozen=True, slots=True)
class CommittedEvidence:
    """What is committed."""

    steps: tuple[CommittedStep, ...]
    newest: dict[int, int]
    """The newest committed step of each rank."""

    @classmethod
    def of(cls, steps: Iterable[CommittedStep]) -> Self:
        """Take the committed steps of a store; those of run files are left out."""
        kept = tuple(steps)
        newest: dict[int, int] = {}
        for step in kept:
            newest[step.rank] = max(newest.get(step.rank, -1), step.step)
        return cls(kept, newest)

    def has(self, first_step: int, since: float = 0.0) -> bool:
        """Return whether every rank has committed a step, or a later one.

        Args:
            first_step: where the incident began.
            since: a Unix time in seconds: what was committed of this step before it does not count.
        """
        if any(step < first_step for step in self.newest.values()):
            return False
        return all(step.committed_at_s >= since for step in self.steps if step.step == first_step)
