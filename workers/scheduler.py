"""What a Dask scheduler is told when it starts: `dask scheduler --preload workers.scheduler`.

A scheduler runs as long as a training job, for weeks, and Dask has it keep some things for ever or for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask
from distributed import Scheduler

#: Dask keeps the last 1000 messages of each connection; ours hold plans, of up to 1 MB each.
MESSAGES_KEPT: Mapping[str, Any] = {"distributed.admin.low-level-log-length": 10}


class NoSpans:
    """Stands in for the extension `spans`, of which no part is ever forgotten.

    A span is begun whenever a task comes and none is under way: 4 KiB, up to a GiB in a day.
    """

    spans_search_by_tag: Mapping[str, Any] = {}
    """What the dashboard asks for."""

    def observe_tasks(self, tasks: object, *, code: object, span_metadata: object) -> dict[Any, Any]:  # noqa: ARG002
        """Put no task into a span."""
        return {}

    def heartbeat(self, worker: object, data: object) -> None:
        """Drop what a worker has measured for spans."""


def keep_no_spans(scheduler: Scheduler) -> None:
    """Have a scheduler keep no spans."""
    scheduler.extensions["spans"] = NoSpans()


def dask_setup(scheduler: Scheduler) -> None:
    """Keep few messages and no spans; what Dask calls of a module that it preloads."""
    dask.config.set(MESSAGES_KEPT)
    keep_no_spans(scheduler)
