"""Events of the tasks."""

from __future__ import annotations

from dataclasses import dataclass

from workers.events import Event
from workers.store.model import CommitSummary
from workers.tasks.model import Receipt, ShardJob


@dataclass(frozen=True, slots=True)
class ConvertStarted(Event):
    """A worker began to convert a job."""

    job: ShardJob


@dataclass(frozen=True, slots=True)
class Converted(Event):
    """A worker wrote all shards of a job."""

    job: ShardJob
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class ConvertFailed(Event):
    """A worker gave up on a job."""

    job: ShardJob
    error: BaseException


@dataclass(frozen=True, slots=True)
class Published(Event):
    """A worker committed a step."""

    summary: CommitSummary
    seconds: float
