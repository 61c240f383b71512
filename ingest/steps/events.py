"""What the service tells those who watch it: logs, metrics, webhook, progress and report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ingest.dispatch.submitter import Outcome
from ingest.dump_retention.retention import RetentionEvent
from ingest.watching.pressure import DiskSeen
from ingest.watching.watcher import View
from workers.errors import ClusterError, StoreError
from workers.model import StepKey


@dataclass(frozen=True, slots=True)
class Trouble:
    """Store or cluster are not there; everything waits, and they are tried again."""

    error: StoreError | ClusterError


@dataclass(frozen=True, slots=True)
class StoreIsBack:
    """The store answers again; what waited for it is tried at once."""


@dataclass(frozen=True, slots=True)
class CommitKept:
    """Files of a committed step are gone from the dump; the commit, which has them, stays."""

    key: StepKey
    gone: int


@dataclass(frozen=True, slots=True)
class CommitWentBack:
    """An older generation of a step took the place of the one that was committed; the step is taken again."""

    key: StepKey


Happening: TypeAlias = (
    Outcome | View | Trouble | StoreIsBack | CommitKept | CommitWentBack | DiskSeen | RetentionEvent
)
Observer: TypeAlias = Callable[[Happening], None]
