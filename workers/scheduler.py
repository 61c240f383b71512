"""Settings for a long-running Dask scheduler: `dask scheduler --preload workers.scheduler`.

A scheduler runs as long as a training job, for weeks. By default, Dask makes it keep some data for ever, or
for a long time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import dask
import distributed.scheduler
from distributed import Scheduler

from workers.host.heartbeat import answer_watchdog
from workers.host.resources import steady_dask

#: By default, Dask keeps the last 1000 messages of each connection. Ours contain plans of up to 1 MB each.
MESSAGES_KEPT: Mapping[str, Any] = {"distributed.admin.low-level-log-length": 10}

#: A worker that has not been heard of for this long is replaced, and its tasks go to others. Heartbeats come
#: twice a second, from a thread of their own: only a process that was stopped, or that starves, misses all.
WORKER_TTL_S = 60.0


class _NoSpans:
    """Replaces the extension `spans`, which never forgets anything.

    A span begins whenever a task arrives while none is running. It takes 4 KiB: up to 1 GiB a day.
    """

    spans_search_by_tag: Mapping[str, Any] = {}
    """Read by the dashboard."""

    def observe_tasks(self, tasks: object, *, code: object, span_metadata: object) -> dict[Any, Any]:  # noqa: ARG002
        return {}

    def heartbeat(self, worker: object, data: object) -> None: ...


def silences(dask_scheduler: Scheduler) -> dict[str, float]:
    """Return for how many seconds a scheduler has not heard of each worker, by address. It runs there."""
    now = vars(distributed.scheduler)["time"]()  # the clock by which it notes heartbeats: see `steady_dask`
    return {address: now - worker.last_seen for address, worker in dask_scheduler.workers.items()}


def dask_setup(scheduler: Scheduler) -> None:
    """Keep few messages and no spans, replace lost workers soon, and do not trust the wall clock.

    Under systemd, tell its watchdog that the scheduler runs.

    Dask calls this function of each module that it preloads.
    """
    dask.config.set(MESSAGES_KEPT)
    steady_dask()
    check = scheduler.periodic_callbacks.get("worker-ttl")
    if check is not None and scheduler.worker_ttl is not None:  # nobody has switched it off
        scheduler.worker_ttl = min(scheduler.worker_ttl, WORKER_TTL_S)
        check.callback_time = scheduler.worker_ttl / 2 * 1000  # it looks for them twice in that time
    scheduler.extensions["spans"] = _NoSpans()
    answer_watchdog(scheduler, os.environ)
