"""A queue with a limit of bytes between the training thread and the thread that writes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")
#: Beyond the limit, so that statistics are recorded where elements do not find room.
_MARGIN_NBYTES = 64 * 1024 * 1024


class ByteQueue(Generic[Item]):
    """A queue that holds at most `limit_nbytes`, or a single larger item.

    Whoever takes an item gives its bytes back when it has written them, with `release`: what waits to be
    written counts, too.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self._items: deque[Item] = deque()
        self._held = 0
        self._waiting = 0
        self._changed = threading.Condition()

    @property
    def held_nbytes(self) -> int:
        """The bytes that were reserved and not given back."""
        return self._held

    def reserve(self, nbytes: int, *, wait: bool) -> bool:
        """Reserve room, and return whether there is.

        Args:
            nbytes: how much.
            wait: whether to wait for it.
        """
        with self._changed:
            while self._held and self._held + nbytes > self.limit_nbytes:
                if not wait:
                    return False
                self._waiting += 1
                self._changed.notify_all()
                self._changed.wait()
                self._waiting -= 1
            self._held += nbytes
            return True

    def reserve_margin(self, nbytes: int) -> bool:
        """Reserve room beyond the limit, for something small, and return whether there is."""
        with self._changed:
            if self._held + nbytes > self.limit_nbytes + _MARGIN_NBYTES:
                return False
            self._held += nbytes
            return True

    def put(self, item: Item) -> None:
        """Add an item, for which room is reserved."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def take(self) -> Item | None:
        """Wait for an item; return None at once if somebody waits for room and the queue is empty."""
        with self._changed:
            while not self._items:
                if self._waiting and self._held:
                    return None
                self._changed.wait()
            return self._items.popleft()

    def release(self, nbytes: int) -> None:
        """Give room back."""
        with self._changed:
            self._held -= nbytes
            self._changed.notify_all()
