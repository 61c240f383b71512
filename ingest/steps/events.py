"""What the service reports to its observers: logs, metrics, webhook, progress and report."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.steps.keep_reasons import KeepReason
from workers.errors import ClusterError, StoreError
from workers.events import Event
from workers.model import StepKey


@dataclass(frozen=True, slots=True)
class DependencyDown(Event):
    """The store or the cluster does not answer; everything waits, and it is tried again."""

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
class ContentReplaced(Event):
    """Files of a committed step have other bytes than were committed, under the same sizes and times."""

    key: StepKey
    files: tuple[str, ...]
    """Their paths, relative to the dump."""


@dataclass(frozen=True, slots=True)
class DumpedAgain(Event):
    """A step is taken again although files of its commit are gone: it is another dump of the step."""

    key: StepKey
    gone: int


@dataclass(frozen=True, slots=True)
class CommitReverted(Event):
    """An older generation of a step took the place of the one that was committed; the step is taken again."""

    key: StepKey


@dataclass(frozen=True, slots=True)
class SourceKept(Event):
    """Files of a committed step stay in the dump."""

    key: StepKey
    reason: KeepReason
    files: int
    detail: str
