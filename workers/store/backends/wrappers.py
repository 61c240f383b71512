"""Wrappers around any `ObjectStore`: one gives up hanging requests, one emits an event for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from workers import events
from workers.errors import StoreError, StoreSilent
from workers.model import MIB, counted
from workers.store.backends.failures import call_within
from workers.store.model import StoreAddress
from workers.store.objects import (
    STORE_OPS,
    NewObject,
    ObjectStore,
    RequestAbandoned,
    StoredObject,
    StoreRequested,
    UnfinishedUpload,
)

T = TypeVar("T")
#: What is sent counts as progress when it is acknowledged: each of these bytes allows a second more.
_SENT_PER_S = MIB
#: The same for requests of which nothing is heard before their end, in timeouts: those that list or move many
#: objects, or read one of unknown size, in file systems that do not tell of their progress.
_UNSEEN = 10.0
_OF_ONE_PIECE = ("put", "flush", "prune")
#: How errors name operations; others by their own names.
_VERBS = {"put": "write", "put_many": "write", "get": "read", "get_many": "read"}


class WrapperObjects:
    """Does what the store inside does, each request through `request`.

    In a directory, which takes objects singly, `put_many` is a `put` for each.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def address(self) -> StoreAddress:
        return self._inner.address

    @property
    def is_local(self) -> bool:
        return self._inner.is_local

    @property
    def tells_progress(self) -> bool:
        return self._inner.tells_progress

    def put(self, key: str, data: bytes | bytearray) -> None:
        self.request("put", key, lambda: self._inner.put(key, data), len(data))

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        if self.is_local:
            for key, data in objects.items():
                self.put(key, data)
            return
        sent = sum(map(len, objects.values()))
        what = counted(len(objects), "object")
        self.request("put_many", what, lambda: self._inner.put_many(objects), sent)

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces."""
        return self._inner.create(key)

    def get(self, key: str) -> bytes | None:
        return self.request("get", key, lambda: self._inner.get(key))

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        return self.request("get_many", keys[0], lambda: self._inner.get_many(keys)) if keys else {}

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        return self.request("get", key, lambda: self._inner.get_range(key, start, stop))

    def delete(self, key: str) -> None:
        self.request("delete", key, lambda: self._inner.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            what = counted(len(keys), "object")
            self.request("delete", what, lambda: self._inner.delete_many(keys))

    def children(self, prefix: str = "") -> list[str]:
        return self.request("list", prefix, lambda: self._inner.children(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self.request("list", prefix, lambda: self._inner.sizes(prefix))

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        return self.request("list", prefix, lambda: self._inner.listed(prefix))

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        return self.request("list", prefix, lambda: self._inner.unfinished_uploads(prefix))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self.request("delete", upload.key, lambda: self._inner.abort_upload(upload))

    def flush(self, prefix: str) -> None:
        if self.is_local:
            self.request("flush", prefix, lambda: self._inner.flush(prefix))

    def prune(self, prefix: str) -> None:
        if self.is_local:
            self.request("prune", prefix, lambda: self._inner.prune(prefix))

    def request(self, op: str, what: str, action: Callable[[], T], sent: int = 0) -> T:  # noqa: ARG002
        """Make one request.

        Args:
            op: one of `STORE_OPS`, or `flush` or `prune`.
            what: the object, or how many, as errors name it.
            action: makes it.
            sent: how many bytes it sends.
        """
        return action()


@dataclass(slots=True)
class Outage:
    """Whether a store is away: it has been silent, and has not answered since.

    Who must not wait asks nothing more of a store that is away. Somebody else asks it until it answers.
    """

    answered_at: float = field(default_factory=time.monotonic)
    """When the store answered last, by the monotonic clock."""
    error: StoreSilent | None = None
    """What it was silent to; None if it is there."""

    def end(self) -> None:
        """Record that it has answered."""
        self.answered_at = time.monotonic()
        self.error = None


class BoundedObjects(WrapperObjects):
    """Makes each request in another thread, and abandons those that hang.

    An abandoned write may still reach the store later, as one may that a network delayed.
    """

    def __init__(self, inner: ObjectStore, timeout_s: float, outage: Outage | None = None) -> None:
        """Pass everything on to `inner`.

        Args:
            inner: does the work.
            timeout_s: how long a request may go on without progress, in seconds.
            outage: if given, nothing is asked of a store that is away.
        """
        super().__init__(inner)
        self._timeout_s, self._outage = timeout_s, outage

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces."""
        return _BoundedNewObject(self, self._inner, key)

    def request(self, op: str, what: str, action: Callable[[], T], sent: int = 0) -> T:
        """Make one request within the time."""
        outage = self._outage
        if outage is not None and (error := outage.error) is not None:
            raise StoreSilent(f"{error.message}; it is still silent")
        allowed_s = self._timeout_s + sent / _SENT_PER_S
        if op not in _OF_ONE_PIECE and not self._inner.tells_progress:
            allowed_s = max(allowed_s, self._timeout_s * _UNSEEN)
        answer = call_within(allowed_s, action, late=lambda waited_s: self._abandoned(op, what, waited_s))
        if outage is not None:
            outage.answered_at = time.monotonic()
        return answer

    def _abandoned(self, op: str, what: str, waited_s: float) -> StoreSilent:
        """Tell that a request was given up; return the error that says so."""
        verb = _VERBS.get(op, op)
        events.emit(RequestAbandoned(verb, waited_s))
        where = f"{self.address.url.rstrip('/')}/{what}"
        error = StoreSilent(f"cannot {verb} {where}: no answer for {waited_s:.0f} s")
        if self._outage is not None and self._outage.error is None:
            self._outage.error = error
        return error


class _BoundedNewObject:
    """A new object, each piece of which is written within the time."""

    def __init__(self, objects: BoundedObjects, inner: ObjectStore, key: str) -> None:
        self._objects, self._key, self._nbytes = objects, key, 0
        self._inner = objects.request("put", key, lambda: inner.create(key))

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        self._nbytes += len(piece)
        self._objects.request("put", self._key, lambda: self._inner.write(piece), len(piece))

    def close(self) -> None:
        # Stores other than directories send all of it now.
        self._objects.request("put", self._key, self._inner.close, self._nbytes)

    def drop(self) -> None:
        self._objects.request("put", self._key, self._inner.drop)


class ObservedObjects(WrapperObjects):
    """Emits `StoreRequested` for each request when it has ended. `flush` and `prune` are not requests."""

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces: a `put` for all of it."""
        return _ObservedNewObject(lambda: self._inner.create(key))

    def request(self, op: str, what: str, action: Callable[[], T], sent: int = 0) -> T:  # noqa: ARG002
        """Make one request, and tell of it."""
        if op not in STORE_OPS:
            return action()
        started = time.perf_counter()
        try:
            answer = action()
        except StoreError as exc:
            events.emit(StoreRequested(op, time.perf_counter() - started, exc))
            raise
        events.emit(StoreRequested(op, time.perf_counter() - started))
        return answer


class _ObservedNewObject:
    """A new object that is one `put`, which lasts as long as the calls for all of its pieces together."""

    def __init__(self, begin: Callable[[], NewObject]) -> None:
        self._spent_s = 0.0
        self._inner = self._timed(begin)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        self._timed(lambda: self._inner.write(piece))

    def close(self) -> None:
        self._timed(self._inner.close)
        events.emit(StoreRequested("put", self._spent_s))

    def drop(self) -> None:
        self._inner.drop()

    def _timed(self, action: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            result = action()
        except StoreError as exc:
            events.emit(StoreRequested("put", self._spent_s + time.perf_counter() - started, exc))
            raise
        self._spent_s += time.perf_counter() - started
        return result
