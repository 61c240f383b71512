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


def is_interrupted(stop: threading.Event) -> bool:
    """Return whether somebody waits for the end: after Ctrl-C, and not after SIGTERM."""
    return isinstance(stop, StopRequest) and stop.is_interrupt
