"""What happens between a process and its store, as values."""

from __future__ import annotations

from dataclasses import dataclass

from workers.errors import StoreError
from workers.events import Event

#: Kinds of requests to a store. A batch is one: its requests are on their way at the same time.
STORE_OPS = ("get", "get_many", "put", "put_many", "delete", "list")


@dataclass(frozen=True, slots=True)
class StoreRequested(Event):
    """A request to a store has come to its end, with what the client sent again meanwhile."""

    op: str
    """One of `STORE_OPS`."""
    seconds: float
    error: StoreError | None = None
    """Why the store refused. That there is no such object is an answer, no error."""
