"""Takes the wall clock out of Dask's event loop.

Tornado and Dask compute when to wake up by `time.time`. If that jumps back by a day, a heartbeat that was to
come in half a second comes in a day, and so does a message to the scheduler that was held back for two
milliseconds: nothing arrives any more, and setting the clock right does not help, because the timer that was
set runs by a clock that did not jump. If it jumps ahead, workers that are well count as lost.
"""

from __future__ import annotations

import sys
import time
from types import ModuleType

#: One for the process: its parts compare times with one another.
_AHEAD_S = time.time() - time.monotonic()


def steady_time() -> float:
    """Return the time in seconds since the epoch: the wall clock at the start, and since then monotonic."""
    return _AHEAD_S + time.monotonic()


def steady_dask() -> None:
    """Have Dask and Tornado use the steady clock in this process; further calls do nothing more.

    Both are imported by the caller. Event loops that run already go on with it: up to now, it was the same.
    Deadlines of both must come from one clock, so both are changed.
    """
    from tornado.ioloop import IOLoop  # deferred: with distributed, which takes 0.5 s

    IOLoop.time = _loop_time  # type: ignore[method-assign, assignment]
    for name, module in list(sys.modules.items()):
        if name == "distributed" or name.startswith("distributed."):
            _steady_module(module)


def _loop_time(_loop: object) -> float:
    return steady_time()


def _steady_module(module: ModuleType) -> None:
    """Replace what a module of Dask imported as `time`, if that is the wall clock."""
    if getattr(module, "time", None) is time.time:
        module.time = steady_time  # type: ignore[attr-defined]
