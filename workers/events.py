"""What happened in the data plane, as values. Metrics and logs subscribe; the data plane knows neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from workers.errors import StoreError
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


#: Kinds of requests to a store. A batch is one: its requests are on their way at the same time.
STORE_OPS = ("get", "get_many", "put", "put_many", "delete", "list")


@dataclass(frozen=True, slots=True)
class StoreRequested:
    """A request to a store has come to its end, with what the client sent again meanwhile."""

    op: str
    """One of `STORE_OPS`."""
    seconds: float
    error: StoreError | None = None
    """Why the store refused. That there is no such object is an answer, no error."""


Event: TypeAlias = ConvertStarted | Converted | ConvertFailed | Published | StoreRequested
_subscribers: list[Callable[[Event], None]] = []


def subscribe(callback: Callable[[Event], None]) -> None:
    """Have `callback` called with every event of this process, in the thread where it happened."""
    _subscribers.append(callback)


def unsubscribe(callback: Callable[[Event], None]) -> None:
    """Have it called no more."""
    _subscribers.remove(callback)


def emit(event: Event) -> None:
    """Tell all subscribers."""
    for callback in _subscribers:
        callback(event)
