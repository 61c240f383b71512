"""The Dask worker plugin: warms a worker up and counts what it does.

The metrics are registered on the default registry of the worker's process, once, so they appear on the
`/metrics` that every Dask worker serves.
"""

from __future__ import annotations

import threading
from typing import Any

from distributed import Worker, WorkerPlugin
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from workers import events
from workers.errors import REASONS, DumpIngestError

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class WorkerMetrics:
    """What the data plane of one process does. No label depends on the dump."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything; every series exists from the first scrape."""
        self._attempts = Counter(
            "dump_ingest_convert_attempts", "Conversion tasks started on this worker.", registry=registry
        )
        self._failures = Counter(
            "dump_ingest_convert_failures", "Conversion tasks that failed.", ["reason"], registry=registry
        )
        for reason in REASONS:
            self._failures.labels(reason=reason)
        self._in_progress = Gauge(
            "dump_ingest_convert_in_progress", "Conversion tasks running on this worker.", registry=registry
        )
        self._read = Counter("dump_ingest_convert_read_bytes", "Bytes of dump files read.", registry=registry)
        self._tensors = Counter(
            "dump_ingest_convert_files", "Dump files converted, tensors and others.", registry=registry
        )
        self._duplicates = Counter(
            "dump_ingest_convert_duplicate_bytes",
            "Payload bytes that were stored already.",
            registry=registry,
        )
        self._shards = Counter("dump_ingest_shards_written", "Shards written.", registry=registry)
        self._shard_bytes = Counter(
            "dump_ingest_shards_written_bytes", "Bytes of shards written.", registry=registry
        )
        self._convert_seconds = Histogram(
            "dump_ingest_convert_duration_seconds",
            "Duration of conversion tasks.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._publish_seconds = Histogram(
            "dump_ingest_publish_duration_seconds",
            "Duration of commits.",
            buckets=_SECONDS,
            registry=registry,
        )

    def observe(self, event: events.Event) -> None:
        """Count one event."""
        match event:
            case events.ConvertStarted():
                self._attempts.inc()
                self._in_progress.inc()
            case events.Converted(receipt=receipt):
                self._in_progress.dec()
                self._read.inc(receipt.bytes_read)
                self._tensors.inc(len(receipt.rows))
                self._duplicates.inc(receipt.duplicate_bytes)
                self._shards.inc(len(receipt.stored))
                self._shard_bytes.inc(sum(receipt.stored.values()))
                self._convert_seconds.observe(receipt.seconds)
            case events.ConvertFailed(error=error):
                self._in_progress.dec()
                reason = error.reason if isinstance(error, DumpIngestError) else "other"
                self._failures.labels(reason=reason).inc()
            case events.Published(seconds=seconds):
                self._publish_seconds.observe(seconds)


_installed = threading.Lock()


def install_metrics() -> None:
    """Count the events of this process on its default registry; the second call does nothing."""
    if _installed.acquire(blocking=False):
        events.subscribe(WorkerMetrics(REGISTRY).observe)


def _load_kernels() -> None:
    from workers import kernels

    kernels.warm_up()


class IngestPlugin(WorkerPlugin):
    """Prepares a worker for `convert` and `publish`."""

    name = "dump-ingest"
    idempotent = True

    def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Import the data plane, so that the first task does not wait for it, and count.

        The compiler is loaded in the background: the first plan is made meanwhile, and the first files read.
        """
        import workers.tasks  # noqa: F401

        install_metrics()
        # No daemon: a process must not end while the compiler is at work.
        threading.Thread(target=_load_kernels, name="dump-ingest-warm-up").start()

    def teardown(self, worker: Any) -> None:
        """Leave the counters: a process has one worker."""
