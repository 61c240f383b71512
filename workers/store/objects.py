"""The seam to storage: the few operations on a bucket or a directory that the store is built from.

`ObjectStore` is the contract. The modules of `backends` implement it, `opening` chooses among them, and
tests/unit/workers/store/backends holds each of them to it. Requests are reported as events; `Uploads` writes
objects in the background while their task goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from workers.errors import StoreError
from workers.events import Event
from workers.model import MIB
from workers.store.model import StoreAddress

#: Requests on their way at once. An object store answers each after tens of milliseconds, so ten thousand
#: small objects, requested one after the other, would take minutes.
REQUESTS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing tells about an object."""

    nbytes: int
    modified_at: float
    """When it was written, in seconds since the epoch, by the clock of the store."""


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload in parts that was begun and neither completed nor aborted: its parts take space."""

    key: str
    """The object that it was to become."""
    upload_id: str
    nbytes: int
    """Of its parts so far."""
    written_at: float
    """When it was begun, or its newest part was written; in seconds since the epoch, by the clock of the
    store."""


class ObjectStore(Protocol):
    """Objects under one address, named by `/`-separated keys.

    Safe to share between threads, not across forks.

    Every method raises `StoreError` and nothing else if the store fails: `StoreDenied` if it does not accept
    the credentials or permissions, `StoreUnavailable` otherwise, including for a missing bucket. The clients
    of object stores send requests again after faults that pass, with growing pauses, before that.

    All methods can be called again after a failure with the same result.
    """

    @property
    def address(self) -> StoreAddress:
        """Where the store is; a process that opens the same address sees the same objects."""

    @property
    def is_local(self) -> bool:
        """Whether this is a directory: the machine itself writes, and waiting less gains nothing."""

    @property
    def tells_progress(self) -> bool:
        """Whether long requests call `deadline.made_progress` on their way."""

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Write one object, replacing any of that name.

        Atomic: readers see the old object or the new one, and a failure leaves the old one. The object is
        visible when this returns.
        """

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects, each as by `put`, in no particular order; `REQUESTS_AT_ONCE` if possible.

        Not atomic as a whole: a failure leaves some of them written.
        """

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces; as with `put`, nothing of it is visible before it is closed.

        Memory: in a directory none of it, otherwise all of it, twice.
        """

    def get(self, key: str) -> bytes | None:
        """Return an object; None if no object has that name."""

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the named objects that exist, in the order of `keys`.

        `REQUESTS_AT_ONCE` if possible; no request for no keys.
        """

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        """Return bytes `start` to `stop`, fewer if the object ends before; None if it does not exist.

        A negative `start` counts from the end, and means the beginning if the object is shorter.
        """

    def delete(self, key: str) -> None:
        """Remove one object; nothing happens if it does not exist."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove several objects, in no particular order; as with `delete`, some may be gone already.

        On S3, a thousand in one request. Directories that become empty stay; see `prune`.
        """

    def children(self, prefix: str = "") -> list[str]:
        """Return the names one level below `prefix`, of objects and of prefixes, sorted; empty on a miss."""

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of every object below `prefix`, by key relative to it; empty on a miss."""

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        """Return every object below `prefix`, by key relative to it, "" for `prefix` itself; empty on a miss.

        In a directory, symbolic links are listed and not followed; behind a link, nothing is listed.
        """

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Return the uploads in parts below `prefix` that are under way, or that a killed writer left.

        Only S3 has any. Takes a request for each thousand of them, and one for the parts of each.
        """

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """End an upload and free its parts; nothing happens if it was completed or aborted meanwhile."""

    def flush(self, prefix: str) -> None:
        """Make sure that the disk holds an object, or all below `prefix`, and the names that lead to it.

        What `put` wrote to a directory stays in the memory of the machine for some seconds, and a power cut
        loses it. An object store that has acknowledged an object needs no flush: it does nothing here.
        """

    def prune(self, prefix: str) -> None:
        """Remove directories without files, `prefix` included, which listings would name.

        Only a directory as store has any. Writers make them again.
        """


class NewObject(Protocol):
    """An object that is being written."""

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Add a piece; the caller may change it when this has returned."""

    def close(self) -> None:
        """Give it its name, in place of any other object of that name."""

    def drop(self) -> None:
        """Leave nothing of it behind; nothing happens if it is closed."""


class Gathered:
    """A new object that is held in memory, and put as a whole."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put
        self._pieces: list[bytes] = []

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Add a piece."""
        self._pieces.append(bytes(piece))

    def close(self) -> None:
        """Put the whole."""
        whole = b"".join(self._pieces)
        self._pieces = []
        self._put(whole)

    def drop(self) -> None:
        """Forget the pieces."""
        self._pieces = []


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


#: Objects that are being written at once.
UPLOADS_AT_ONCE = 2
#: Their bytes together, unless one object alone is larger. The client holds each twice while it is sent.
UPLOADS_NBYTES = 128 * MIB


class Uploads(AbstractContextManager["Uploads"]):
    """Writes objects in the background: a task encodes the next one meanwhile.

    Used as `with Uploads(objects) as uploads:`. When the block has ended, every object is written; if one
    could not be written, the block ends with that error. An error within the block takes precedence. In both
    cases objects that were waiting are not written, and none is still being written. Not safe to share
    between threads.

    Memory: `UPLOADS_NBYTES`, or one object if that is larger, twice.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._threads = ThreadPoolExecutor(UPLOADS_AT_ONCE, thread_name_prefix="dump-ingest-upload")
        self._running: list[tuple[Future[None], int]] = []

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Begin to write one object. Waits while too many are being written.

        Raises:
            StoreError: an earlier object could not be written.
        """
        self._drop_finished()
        while self._running and not self._has_room(len(data)):
            # The oldest: all are of about the same size.
            self._running[0][0].result()
            self._drop_finished()
        # A copy, so that the buffer of the caller is free at once.
        content = bytes(data)
        self._running.append((self._threads.submit(self._objects.put, key, content), len(content)))

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces: writing begins when it is closed."""
        return Gathered(lambda data: self.put(key, data))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for future, _ in self._running:
                    future.result()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _has_room(self, nbytes: int) -> bool:
        waiting = sum(size for _, size in self._running)
        return len(self._running) < UPLOADS_AT_ONCE and waiting + nbytes <= UPLOADS_NBYTES

    def _drop_finished(self) -> None:
        for future, _ in self._running:
            if future.done():
                future.result()
        self._running = [(future, size) for future, size in self._running if not future.done()]
