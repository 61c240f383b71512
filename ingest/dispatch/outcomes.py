"""Outcomes of the steps that were offered to the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from workers.errors import DumpIngestError
from workers.events import Event
from workers.store.model import CommitSummary
from workers.tasks.model import ShardJob, StepPlan


@dataclass(frozen=True, slots=True)
class StepCommitted(Event):
    """A step is visible."""

    plan: StepPlan
    summary: CommitSummary
    seconds: float
    """Since it was offered."""


@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    """A step was given up for now. Nothing of it is visible."""

    plan: StepPlan
    error: DumpIngestError


@dataclass(frozen=True, slots=True)
class StepStale(Event):
    """The source of a step changed while it was read; it must be planned again."""

    plan: StepPlan
    reason: str


@dataclass(frozen=True, slots=True)
class TaskRetried(Event):
    """A task failed and will be submitted again."""

    plan: StepPlan
    error: DumpIngestError
    attempt: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class JobConverted(Event):
    """One task of a step has written its shards."""

    plan: StepPlan
    job: ShardJob


Outcome: TypeAlias = StepCommitted | StepFailed | StepStale | TaskRetried | JobConverted
