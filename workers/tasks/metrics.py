"""What a process of the data plane tells Prometheus. Subscribes to `workers.events`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from workers import __version__, events
from workers.errors import REASONS, DumpIngestError
from workers.store.events import STORE_OPS, StoreRequested
from workers.tasks.events import Converted, ConvertFailed, ConvertStarted, Published

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
#: Requests to a store: a small object takes some ten milliseconds, one that is sent again for long minutes.
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
#: Reasons of `StoreError` and its kinds.
STORE_REASONS = ("damaged_store", "other", "store_denied", "store_format", "store_unavailable")


def register_build_info(registry: CollectorRegistry) -> None:
    """Say which version this process runs."""
    info = Gauge("dump_ingest_build_info", "1, with the version.", ["version"], registry=registry)
    info.labels(version=__version__).set(1)


class StoreMetrics:
    """Requests to the store. Bound of series: 19 for each of six operations, and 30 of errors."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything; every series exists from the first scrape."""
        self._seconds = Histogram(
            "dump_ingest_store_request_duration_seconds",
            "Duration of requests to the store, with what the client sent again; a batch is one request.",
            ["op"],
            buckets=_REQUEST_SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "dump_ingest_store_request_errors",
            "Requests that the store refused, after the client had sent them again.",
            ["op", "reason"],
            registry=registry,
        )
        for op in STORE_OPS:
            self._seconds.labels(op=op)
            for reason in STORE_REASONS:
                self._errors.labels(op=op, reason=reason)

    def observe(self, event: events.Event) -> None:
        """Count one event, if it is a request."""
        if isinstance(event, StoreRequested):
            self._seconds.labels(op=event.op).observe(event.seconds)
            if event.error is not None:
                self._errors.labels(op=event.op, reason=event.error.reason).inc()


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
            case ConvertStarted():
                self._attempts.inc()
                self._in_progress.inc()
            case Converted(receipt=receipt):
                self._in_progress.dec()
                self._read.inc(receipt.bytes_read)
                self._tensors.inc(len(receipt.rows))
                self._duplicates.inc(receipt.duplicate_bytes)
                self._shards.inc(len(receipt.stored))
                self._shard_bytes.inc(sum(receipt.stored.values()))
                self._convert_seconds.observe(receipt.seconds)
            case ConvertFailed(error=error):
                self._in_progress.dec()
                reason = error.reason if isinstance(error, DumpIngestError) else "other"
                self._failures.labels(reason=reason).inc()
            case Published(seconds=seconds):
                self._publish_seconds.observe(seconds)
