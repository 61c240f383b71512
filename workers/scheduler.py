"""Settings for a long-running Dask scheduler: `dask scheduler --preload workers.scheduler`.

A scheduler runs as long as a training job, for weeks. By default, Dask makes it keep some data for ever, or
for a long time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask
from distributed import Scheduler

#: By default, Dask keeps the last 1000 messages of each connection. Ours contain plans of up to 1 MB each.
MESSAGES_KEPT: Mapping[str, Any] = {"distributed.admin.low-level-log-length": 10}


class NoSpans:
    """Replaces the extension `spans`, which never forgets anything.

    A span begins whenever a task arrives while none is running. It takes 4 KiB: up to 1 GiB a day.
    """

    spans_search_by_tag: Mapping[str, Any] = {}
    """Read by the dashboard."""

    def observe_tasks(self, tasks: object, *, code: object, span_metadata: object) -> dict[Any, Any]:  # noqa: ARG002
        """Put no task into a span."""
        return {}

    def heartbeat(self, worker: object, data: object) -> None:
        """Drop what a worker has measured for spans."""


def keep_no_spans(scheduler: Scheduler) -> None:
    """Make a scheduler keep no spans."""
    scheduler.extensions["spans"] = NoSpans()


class PortlessScheduler(Scheduler):
    """A scheduler without HTTP: neither dashboard nor `/metrics`, and no port for them."""

    def start_http_server(self, *args: object, **options: object) -> None:
        """Open no port. By default, Dask opens one for HTTP, even without anything to show."""


def dask_setup(scheduler: Scheduler) -> None:
    """Keep few messages and no spans. Dask calls this function of each module that it preloads."""
    dask.config.set(MESSAGES_KEPT)
    keep_no_spans(scheduler)
