"""The Dask worker plugin: it prepares a worker for our tasks, and counts what they do.

The metrics are registered on the default registry of the worker's process, once, so they appear on the
`/metrics` that every Dask worker serves: from its start with `dask worker --preload workers.plugin`, and
otherwise as soon as a watcher has connected.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from pathlib import Path
from typing import Any

from distributed import Worker, WorkerPlugin
from prometheus_client import REGISTRY

from workers import events
from workers.arrays.compiled import kernels
from workers.host.heartbeat import answer_watchdog
from workers.host.paths import check_scratch
from workers.host.resources import steady_dask
from workers.tasks.metrics import StoreMetrics, WorkerMetrics, register_build_info

_installed = threading.Lock()


def install_metrics() -> None:
    """Count the events of this process on its default registry; further calls do nothing."""
    if _installed.acquire(blocking=False):
        register_build_info(REGISTRY)
        events.subscribe(WorkerMetrics(REGISTRY).observe)
        events.subscribe(StoreMetrics(REGISTRY).observe)


def dask_setup(worker: Worker) -> None:
    """Prepare a worker at its start. Dask calls this function of each module that it preloads.

    Dask's profiler of tasks is switched off: it samples every thread a hundred times per second, and keeps
    the samples of the last 1000 s, some 30 MiB. Under systemd, it notifies the watchdog that the worker runs.

    Raises:
        ClusterError: another user may write where this process looks for modules.
    """
    check_scratch(Path(worker.local_directory).parent)
    steady_dask()
    install_metrics()
    for name in ("profile", "profile-cycle"):
        if (callback := worker.periodic_callbacks.pop(name, None)) is not None:
            callback.stop()
    answer_watchdog(worker, os.environ)


def _load_kernels() -> None:
    kernels.warm_up()
    # Large plans trigger full garbage collections, which do not need to visit what is loaded by now.
    gc.freeze()


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for the error of a heartbeat that was under way when its worker ended."""
    exc = record.exc_info[1] if record.exc_info else None
    return not (isinstance(exc, RuntimeError) and str(exc) == "ConnectionPool is closed")


class IngestPlugin(WorkerPlugin):
    """Prepares a worker for `convert` and `publish`."""

    name = "dump-ingest"
    idempotent = True

    def setup(self, worker: Worker) -> None:  # noqa: ARG002  (Dask's interface)
        """Import the data plane, so that the first task does not wait for it, and install the metrics.

        The compiler is loaded in the background, while the first step is planned and its files are read.
        """
        import workers.tasks.run  # noqa: F401  # deferred: 0.4 s, which a preloaded worker may spend later

        steady_dask()
        install_metrics()
        logging.getLogger("tornado.application").addFilter(_is_relevant)
        # Not a daemon: the process must not end while the compiler is at work.
        threading.Thread(target=_load_kernels, name="dump-ingest-warm-up").start()

    def teardown(self, worker: Any) -> None:
        """Keep the counters: a process has a single worker."""
