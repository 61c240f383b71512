"""The Dask worker plugin: warms a worker up and counts what it does.

The metrics are registered on the default registry of the worker's process, once, so they appear on the
`/metrics` that every Dask worker serves: from its start with `dask worker --preload workers.plugin`, and else
as soon as a watcher has come.
"""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

from distributed import Worker, WorkerPlugin
from prometheus_client import REGISTRY

from workers import events
from workers.arrays import kernels
from workers.tasks.metrics import StoreMetrics, WorkerMetrics, register_build_info

_installed = threading.Lock()


def install_metrics() -> None:
    """Count the events of this process on its default registry; the second call does nothing."""
    if _installed.acquire(blocking=False):
        register_build_info(REGISTRY)
        events.subscribe(WorkerMetrics(REGISTRY).observe)
        events.subscribe(StoreMetrics(REGISTRY).observe)


def dask_setup(worker: Worker) -> None:
    """Count from the start of a worker; what Dask calls of a module that it preloads.

    Dask's profiler of tasks is switched off: it looks at every thread a hundred times in a second, and keeps
    what it saw in the last 1000 s, some 30 MiB.
    """
    install_metrics()
    for name in ("profile", "profile-cycle"):
        if (callback := worker.periodic_callbacks.pop(name, None)) is not None:
            callback.stop()


def _load_kernels() -> None:

    kernels.warm_up()
    # What is there by now stays. Large plans bring full garbage collections about, which need not look at it.
    gc.freeze()


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Whether a record is another one than that of a heartbeat which was under way when its worker ended."""
    exc = record.exc_info[1] if record.exc_info else None
    return not (isinstance(exc, RuntimeError) and str(exc) == "ConnectionPool is closed")


class IngestPlugin(WorkerPlugin):
    """Prepares a worker for `convert` and `publish`."""

    name = "dump-ingest"
    idempotent = True

    def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Import the data plane, so that the first task does not wait for it, and count.

        The compiler is loaded in the background: the first plan is made meanwhile, and the first files read.
        """
        import workers.tasks.run  # noqa: F401

        install_metrics()
        logging.getLogger("tornado.application").addFilter(_is_worth_telling)
        # No daemon: a process must not end while the compiler is at work.
        threading.Thread(target=_load_kernels, name="dump-ingest-warm-up").start()

    def teardown(self, worker: Any) -> None:
        """Leave the counters: a process has one worker."""
