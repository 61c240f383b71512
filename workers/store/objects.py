"""The seam to storage: the few operations on a bucket or a directory that the store is built from.

`ObjectStore` is the contract. The modules of `backends` implement it, `opening` chooses among them, and
tests/unit/workers/store/backends holds each of them to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.store.model import StoreAddress
from workers.store.pieces import NewObject

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
    """What the store calls it."""
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
