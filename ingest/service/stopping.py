"""A request to stop, and what stops because of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class StopRequest(threading.Event):
    """Is set when a command is to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: Callable[[], int] = lambda: 0
        """Returns how many tasks are to be finished; called in a handler of a signal."""
        self.is_interrupt = False
        """Whether somebody waits for the end: Ctrl-C."""
        self.asked_at: float | None = None
        """When the end was asked for, by the monotonic clock."""

    def set(self) -> None:
        """Ask for the end."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        super().set()


def left_s(stop: threading.Event, limit_s: float) -> float:
    """Return how much is left of a time that began when the end was asked for, in seconds; 0 after Ctrl-C."""
    if is_interrupted(stop):
        return 0.0
    asked_at = stop.asked_at if isinstance(stop, StopRequest) else None
    return limit_s if asked_at is None else max(asked_at + limit_s - time.monotonic(), 0.0)


def is_interrupted(stop: threading.Event) -> bool:
    """Return whether somebody waits for the end: after Ctrl-C, and not after SIGTERM."""
    return isinstance(stop, StopRequest) and stop.is_interrupt
