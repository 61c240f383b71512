"""The event of a request to a store."""

from __future__ import annotations

from dataclasses import dataclass

from workers.errors import StoreError
from workers.events import Event

#: Kinds of requests to a store. A batch counts as one: its requests are on their way at the same time.
STORE_OPS = ("get", "get_many", "put", "put_many", "delete", "list")


@dataclass(frozen=True, slots=True)
class StoreRequested(Event):
    """A request to a store has ended, with all repetitions by the client."""

    op: str
    """One of `STORE_OPS`."""
    seconds: float
    error: StoreError | None = None
    """Why it failed. That an object does not exist is an answer, not an error."""


@dataclass(frozen=True, slots=True)
class RequestAbandoned(Event):
    """A request made no progress for too long, and was given up. It ends by itself at some time, or never."""

    verb: str
    seconds: float
    """How long it was waited for since its last progress."""


@dataclass(frozen=True, slots=True)
class StoreClockSeen(Event):
    """The store has told the time."""

    ahead_s: float
    """How far the clock of this host is ahead of the store's clock, in seconds; accurate to a second."""
