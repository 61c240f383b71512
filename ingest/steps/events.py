"""What the service tells those who watch it: logs, metrics, webhook, progress and report."""

from __future__ import annotations

from dataclasses import dataclass

from workers.errors import ClusterError, StoreError
from workers.events import Event
from workers.model import StepKey


@dataclass(frozen=True, slots=True)
class DependencyDown(Event):
    """Store or cluster are not there; everything waits, and they are tried again."""

    error: StoreError | ClusterError


@dataclass(frozen=True, slots=True)
class StoreRecovered(Event):
    """The store answers again; what waited for it is tried at once."""


@dataclass(frozen=True, slots=True)
class CommitKept(Event):
    """Files of a committed step are gone from the dump; the commit, which has them, stays."""

    key: StepKey
    gone: int


@dataclass(frozen=True, slots=True)
class CommitReverted(Event):
    """An older generation of a step took the place of the one that was committed; the step is taken again."""

    key: StepKey
