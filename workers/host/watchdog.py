"""Tells systemd that the event loop of a Dask scheduler or worker runs, as `WatchdogSec=` asks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from distributed.core import Server
from tornado.ioloop import PeriodicCallback

from workers.host.heartbeat import Heartbeat


def answer_watchdog(server: Server, environment: Mapping[str, str]) -> None:
    """Tell a service manager that a server has started, and that its event loop beats, if it asks for that.

    The loop answers heartbeats, tasks and `/health`; tasks themselves run in threads, and the watcher looks
    after those. So a loop that stands still for minutes hangs, and nobody else would end its process: a
    scheduler forgets a worker that it does not hear of, which has no nanny to start it again.
    """
    heart = Heartbeat(environment)
    heart.tell_ready()
    if heart.interval_s == math.inf:
        return
    # Dask starts and stops it with its own callbacks. Twice in an interval, because it may be late.
    server.periodic_callbacks["dump-ingest-watchdog"] = PeriodicCallback(
        heart.beat, heart.interval_s / 2 * 1000
    )
