"""Worker processes of our own, which Ctrl-C on the terminal does not reach, and which end with us."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, TypeVar

from workers.errors import ClusterError

if TYPE_CHECKING:  # importing distributed takes 0.5 s
    from distributed import SpecCluster

#: What Dask logs of processes that we have started ourselves says nothing to the user.
_QUIET_LOGGERS = ("distributed", "tornado.application", "bokeh")
_CLOSE_S = 5.0
Started = TypeVar("Started")


def start_dask_workers(start: Callable[[], Started]) -> Started:
    """Start a scheduler in this process and workers in others; return the result of `start`.

    The terminal sends Ctrl-C to all processes of its foreground group. Workers would die of it, while the
    main process waits for them. So they are started, now and whenever one dies, by threads in which the
    signal is blocked: a process inherits that from the thread that starts it.

    Raises:
        ClusterError: they do not start.
    """
    started: list[Started | BaseException] = []

    def start_shielded() -> None:
        # If it starts later, it unblocks the signal in the thread that needs it first.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started.append(start())
        except BaseException as exc:  # noqa: BLE001  (raised where it is waited for)
            started.append(exc)

    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    starting = threading.Thread(target=start_shielded, name="dump-ingest-workers")
    # A daemon thread: a process that gets a signal to stop while they start does not wait for them.
    starting.daemon = True
    starting.start()
    starting.join()
    (outcome,) = started
    if isinstance(outcome, Exception):
        raise ClusterError(f"cannot start workers: {outcome}"[:500]) from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def end_dask_workers(cluster: SpecCluster) -> None:
    """End the workers at once, even in the middle of tasks, and the scheduler.

    Nothing of an unfinished step is visible: a single write makes a step visible.
    """
    for nanny in list(cluster.workers.values()):
        nanny.auto_restart = False
        pid = nanny.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    cluster.close(timeout=_CLOSE_S)
