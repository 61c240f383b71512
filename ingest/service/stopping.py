"""A request to stop, and what stops because of it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class StopRequest(threading.Event):
    """Is set when a command is to stop."""

    def __init__(self) -> None:
        """Begin with nothing under way."""
        super().__init__()
        self.under_way: Callable[[], int] = lambda: 0
        """Returns how many tasks are to be finished; called in a handler of a signal."""
        self.is_interrupt = False
        """Whether somebody waits for the end: Ctrl-C."""


def drain_time(stop: threading.Event, *, interrupted_s: float, terminated_s: float) -> float:
    """Return how long to finish what is under way, in seconds: after Ctrl-C, or after SIGTERM."""
    return interrupted_s if isinstance(stop, StopRequest) and stop.is_interrupt else terminated_s
