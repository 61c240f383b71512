"""The event of a request to a store."""

from __future__ import annotations

from dataclasses import dataclass

from workers.errors import StoreError
from workers.events import Event

#: Kinds of requests to a store. A batch counts as one: its requests are on their way at the same time.
STORE_OPS = ("get", "get_many", "put", "put_many", "delete", "list")


@dataclass(frozen=True, slots=True)
class StoreRequested(Event):
    """A request to a store has ended, after whatever the client sent again."""

    op: str
    """One of `STORE_OPS`."""
    seconds: float
    error: StoreError | None = None
    """Why it failed. That an object does not exist is an answer, not an error."""
