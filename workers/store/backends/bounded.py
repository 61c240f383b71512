"""A wrapper around any `ObjectStore` that gives up a request which makes no progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from workers import events
from workers.errors import StoreSilent
from workers.model import MIB, counted
from workers.store.backends.deadline import call_within
from workers.store.backends.wrapper import WrapperObjects
from workers.store.objects import NewObject, ObjectStore, RequestAbandoned, StoredObject, UnfinishedUpload

T = TypeVar("T")
#: What is sent counts as progress when it is acknowledged: each of these bytes allows a second more.
_SENT_PER_S = MIB
#: The same for requests of which nothing is heard before their end, in timeouts: those that list or move many
#: objects, or read one of unknown size, in file systems that do not tell of their progress.
_UNSEEN = 10.0


@dataclass(slots=True)
class Outage:
    """Whether a store is away: it has been silent, and has not answered since.

    Who must not wait asks nothing more of a store that is away. Somebody else asks it until it answers.
    """

    answered_at: float = field(default_factory=time.monotonic)
    """When the store answered last, by the monotonic clock."""
    error: StoreSilent | None = None
    """What it was silent to; None if it is there."""

    def begin(self, error: StoreSilent) -> None:
        """Record that the store is silent."""
        if self.error is None:
            self.error = error

    def end(self) -> None:
        """Record that it has answered."""
        self.answered_at = time.monotonic()
        self.error = None

    def refuse(self) -> None:
        """Raise StoreSilent if the store is away."""
        if (error := self.error) is not None:
            raise StoreSilent(f"{error.message}; it is still silent")


class BoundedObjects(WrapperObjects):
    """Does what the store inside does, each request in another thread, and abandons those that hang.

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
        self._timeout_s = timeout_s
        self._outage = outage

    def __repr__(self) -> str:
        return f"BoundedObjects({self._inner!r}, {self._timeout_s:g})"

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Write one object."""
        self._ask("write", key, lambda: self._inner.put(key, data), self._for_sent(len(data)))

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects."""
        allowed_s = self._for_sent(sum(map(len, objects.values())))
        what = counted(len(objects), "object")
        self._ask("write", what, lambda: self._inner.put_many(objects), max(allowed_s, self._unseen_s))

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces."""
        return _BoundedNewObject(self, key)

    def get(self, key: str) -> bytes | None:
        """Return an object."""
        return self._ask("read", key, lambda: self._inner.get(key), self._unseen_s)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the named objects that exist."""
        if not keys:
            return {}
        return self._ask("read", keys[0], lambda: self._inner.get_many(keys), self._unseen_s)

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        """Return bytes `start` to `stop`."""
        return self._ask("read", key, lambda: self._inner.get_range(key, start, stop), self._unseen_s)

    def delete(self, key: str) -> None:
        """Remove one object."""
        self._ask("delete", key, lambda: self._inner.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove several objects."""
        what = counted(len(keys), "object")
        self._ask("delete", what, lambda: self._inner.delete_many(keys), self._unseen_s)

    def children(self, prefix: str = "") -> list[str]:
        """Return the names one level below `prefix`."""
        return self._ask("list", prefix, lambda: self._inner.children(prefix), self._unseen_s)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every object below `prefix`."""
        return self._ask("list", prefix, lambda: self._inner.sizes(prefix), self._unseen_s)

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        """Return every object below `prefix`."""
        return self._ask("list", prefix, lambda: self._inner.listed(prefix), self._unseen_s)

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Return the uploads in parts that are not completed."""
        return self._ask("list", prefix, lambda: self._inner.unfinished_uploads(prefix), self._unseen_s)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """End an upload."""
        self._ask("delete", upload.key, lambda: self._inner.abort_upload(upload))

    def flush(self, prefix: str) -> None:
        """Have the store inside flush."""
        if self.is_local:
            self._ask("flush", prefix, lambda: self._inner.flush(prefix))

    def prune(self, prefix: str) -> None:
        """Have the store inside prune."""
        if self.is_local:
            self._ask("prune", prefix, lambda: self._inner.prune(prefix))

    @property
    def _unseen_s(self) -> float:
        return self._timeout_s * (1.0 if self._inner.tells_progress else _UNSEEN)

    def _for_sent(self, nbytes: int) -> float:
        return self._timeout_s + nbytes / _SENT_PER_S

    def _ask(self, verb: str, key: str, action: Callable[[], T], allowed_s: float | None = None) -> T:
        if self._outage is not None:
            self._outage.refuse()
        allowed_s = self._timeout_s if allowed_s is None else allowed_s
        answer = call_within(allowed_s, action, late=lambda waited_s: self._abandoned(verb, key, waited_s))
        if self._outage is not None:
            self._outage.answered_at = time.monotonic()
        return answer

    def _abandoned(self, verb: str, key: str, waited_s: float) -> StoreSilent:
        """Tell that a request was given up; return the error that says so."""
        events.emit(RequestAbandoned(verb, waited_s))
        where = f"{self.address.url.rstrip('/')}/{key}"
        error = StoreSilent(f"cannot {verb} {where}: no answer for {waited_s:.0f} s")
        if self._outage is not None:
            self._outage.begin(error)
        return error


class _BoundedNewObject:
    """A new object, each piece of which is written within the time."""

    def __init__(self, objects: BoundedObjects, key: str) -> None:
        self._key, self._objects = key, objects
        self._nbytes = 0
        self._inner = objects._ask("write", key, lambda: objects._inner.create(key))  # noqa: SLF001 (a part of it)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        self._nbytes += len(piece)
        self._bounded(lambda: self._inner.write(piece), len(piece))

    def close(self) -> None:
        # Stores other than directories send all of it now.
        self._bounded(self._inner.close, self._nbytes)

    def drop(self) -> None:
        self._bounded(self._inner.drop, 0)

    def _bounded(self, action: Callable[[], None], nbytes: int) -> None:
        allowed_s = self._objects._for_sent(nbytes)  # noqa: SLF001 (a part of it)
        self._objects._ask("write", self._key, action, allowed_s)  # noqa: SLF001 (a part of it)
