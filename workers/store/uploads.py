"""Uploads: objects that are written in the background while their task goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from workers.model import MIB
from workers.store.objects import ObjectStore
from workers.store.pieces import Gathered, NewObject

#: Objects that are being written at once.
UPLOADS_AT_ONCE = 2
#: Their bytes together, unless one object alone is larger. The client holds each twice while it is sent.
UPLOADS_NBYTES = 128 * MIB


class Uploads:
    """Writes objects in the background: a task encodes the next one meanwhile.

    Used as `with Uploads(objects) as uploads:`. When the block has ended, every object is written; if one
    could not be written, the block ends with that error. An error within the block takes precedence. In both
    cases objects that were waiting are not written, and none is still being written. Not safe to share
    between threads.

    Memory: `UPLOADS_NBYTES`, or one object if that is larger, twice.
    """

    def __init__(self, objects: ObjectStore) -> None:
        """Write to `objects`."""
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

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for objects that are being written; raise the error if one fails."""
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
