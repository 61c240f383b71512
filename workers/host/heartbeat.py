"""The heartbeat of a process, when its main loop last made progress, and its notifications of systemd.

Work that takes long calls `beat` as it goes: a look at a large dump for each directory and each header, a
round of the consolidator between listings and after each task. So the heart beats through a look of half an
hour, and stands still in a process that hangs in a dead file system. Whoever watches the process judges by
that: the health check of containers by the metric, Kubernetes by `/live`, systemd by the messages that `beat`
sends.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.core import Server


#: Messages to systemd are sent this many times in the interval that its watchdog allows.
_BEATS_OF_AN_INTERVAL = 4


class Heartbeat:
    """Remembers when work last got on, and tells systemd, if that asks for it.

    systemd asks by the variables NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; see sd_notify(3).
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._last_at = self._notified_at = time.monotonic()
        self._address = environment.get("NOTIFY_SOCKET", "")
        usec = environment.get("WATCHDOG_USEC", "")
        # Child processes inherit the variables; only the process that systemd started speaks for the service.
        is_asked = usec.isdecimal() and environment.get("WATCHDOG_PID", "") in {"", str(os.getpid())}
        self._interval_s = int(usec) / 1e6 / _BEATS_OF_AN_INTERVAL if is_asked else math.inf

    def beat(self) -> None:
        """Record that work makes progress. Takes a tenth of a microsecond."""
        self._last_at = now = time.monotonic()
        if now - self._notified_at >= self._interval_s:
            self._notified_at = now
            self._tell("WATCHDOG=1")

    @property
    def interval_s(self) -> float:
        """How often systemd wants to hear of this process, in seconds; infinite if it does not ask."""
        return self._interval_s

    def tell_ready(self) -> None:
        """Tell systemd that the service has started."""
        self._tell("READY=1")
        self.beat()

    @property
    def age_s(self) -> float:
        """How long ago work last got on, in seconds."""
        return time.monotonic() - self._last_at

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        # "@" replaces the zero byte at the beginning of a name in the abstract namespace.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(message.encode(), address)


def answer_watchdog(server: Server, environment: Mapping[str, str]) -> None:
    """Tell a service manager that a server has started, and that its event loop beats, if it asks for that.

    The loop answers heartbeats, tasks and `/health`; tasks themselves run in threads, and the watcher looks
    after those. So a loop that stands still for minutes hangs, and nobody else would end its process: a
    scheduler forgets a worker that it does not hear of, which has no nanny to start it again.
    """
    from tornado.ioloop import PeriodicCallback  # deferred: the watcher has no Dask server

    heart = Heartbeat(environment)
    heart.tell_ready()
    if heart.interval_s == math.inf:
        return
    # Dask starts and stops it with its own callbacks. Twice in an interval, because it may be late.
    server.periodic_callbacks["dump-ingest-watchdog"] = PeriodicCallback(
        heart.beat, heart.interval_s / 2 * 1000
    )


#: The one heart of this process.
_HEART = Heartbeat(os.environ)
beat = _HEART.beat
tell_ready = _HEART.tell_ready
#: How often systemd wants to hear of this process, in seconds; infinite if it does not ask.
INTERVAL_S = _HEART.interval_s


def last_beat() -> float:
    """Return when work last got on, in seconds since the epoch."""
    return time.time() - _HEART.age_s
