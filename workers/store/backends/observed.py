"""A wrapper around any `ObjectStore` that emits an event for each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from workers import events
from workers.errors import StoreError
from workers.store.backends.wrapper import WrapperObjects
from workers.store.objects import NewObject, StoredObject, StoreRequested, UnfinishedUpload

T = TypeVar("T")


class ObservedObjects(WrapperObjects):
    """Does what the store inside does, and emits `StoreRequested` for each request when it has ended.

    `flush` and `prune` are not requests.
    """

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Write one object: a `put`."""
        with _Request("put"):
            self._inner.put(key, data)

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects: a `put_many`; in a directory, which takes them singly, a `put` for each."""
        if self.is_local:
            for key, data in objects.items():
                self.put(key, data)
            return
        with _Request("put_many"):
            self._inner.put_many(objects)

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces: a `put` for all of it."""
        return _ObservedNewObject(lambda: self._inner.create(key))

    def get(self, key: str) -> bytes | None:
        """Return an object: a `get`."""
        with _Request("get"):
            return self._inner.get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the named objects that exist: a `get_many`, unless no keys are named."""
        if not keys:
            return {}
        with _Request("get_many"):
            return self._inner.get_many(keys)

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        """Return bytes `start` to `stop`: a `get`."""
        with _Request("get"):
            return self._inner.get_range(key, start, stop)

    def delete(self, key: str) -> None:
        """Remove one object: a `delete`."""
        with _Request("delete"):
            self._inner.delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove several objects: a `delete`, unless no keys are named."""
        if not keys:
            return
        with _Request("delete"):
            self._inner.delete_many(keys)

    def children(self, prefix: str = "") -> list[str]:
        """Return the names one level below `prefix`: a `list`."""
        with _Request("list"):
            return self._inner.children(prefix)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every object below `prefix`: a `list`."""
        with _Request("list"):
            return self._inner.sizes(prefix)

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        """Return every object below `prefix`: a `list`."""
        with _Request("list"):
            return self._inner.listed(prefix)

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Return the uploads in parts that are not completed: a `list`."""
        with _Request("list"):
            return self._inner.unfinished_uploads(prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """End an upload: a `delete`."""
        with _Request("delete"):
            self._inner.abort_upload(upload)

    def flush(self, prefix: str) -> None:
        """Have the store inside flush."""
        self._inner.flush(prefix)

    def prune(self, prefix: str) -> None:
        """Have the store inside prune."""
        self._inner.prune(prefix)


class _Request:
    """A block that is one request."""

    __slots__ = ("_op", "_started")

    def __init__(self, op: str) -> None:
        self._op = op

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._started
        if error is None:
            events.emit(StoreRequested(self._op, seconds))
        elif isinstance(error, StoreError):
            events.emit(StoreRequested(self._op, seconds, error))


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
