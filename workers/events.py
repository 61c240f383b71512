"""What happened in the data plane, as values. Metrics and logs subscribe; the data plane knows neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from workers.model import CommitSummary, Receipt, ShardJob


@dataclass(frozen=True, slots=True)
class ConvertStarted:
    """A worker has begun to convert a job."""

    job: ShardJob


@dataclass(frozen=True, slots=True)
class Converted:
    """A worker has written all shards of a job."""

    job: ShardJob
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class ConvertFailed:
    """A worker gave up on a job."""

    job: ShardJob
    error: BaseException


@dataclass(frozen=True, slots=True)
class Published:
    """A worker has made a step visible."""

    summary: CommitSummary
    seconds: float


Event: TypeAlias = ConvertStarted | Converted | ConvertFailed | Published
_subscribers: list[Callable[[Event], None]] = []


def subscribe(callback: Callable[[Event], None]) -> None:
    """Have `callback` called with every event of this process, in the thread where it happened."""
    _subscribers.append(callback)


def emit(event: Event) -> None:
    """Tell all subscribers."""
    for callback in _subscribers:
        callback(event)
