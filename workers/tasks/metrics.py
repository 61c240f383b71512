"""Metrics of a process of the data plane. They observe the events of `workers.events`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from workers import __version__
from workers.errors import REASONS, DumpIngestError
from workers.events import Event
from workers.store.objects import STORE_OPS, RequestAbandoned, StoreClockSeen, StoreRequested
from workers.tasks.model import Converted, ConvertFailed, ConvertStarted, Published

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
#: Requests to a store: a small object takes some ten milliseconds, a request that is retried for long
#: minutes.
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
#: Reasons of `StoreError` and its subclasses.
STORE_REASONS = (
    "clock_skew",
    "damaged_store",
    "other",
    "store_denied",
    "store_format",
    "store_silent",
    "store_unavailable",
)


def register_build_info(registry: CollectorRegistry) -> None:
    """Register a metric that names the version of this process."""
    info = Gauge("dump_ingest_build_info", "1, with the version.", ["version"], registry=registry)
    info.labels(version=__version__).set(1)


class StoreMetrics:
    """Requests to the store. At most 19 series for each of six operations, 42 of errors, and two more."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "dump_ingest_store_request_duration_seconds",
            "Duration of requests to the store, including retries of the client; a batch is one request.",
            ["op"],
            buckets=_REQUEST_SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "dump_ingest_store_request_errors",
            "Requests that the store refused, after the retries of the client.",
            ["op", "reason"],
            registry=registry,
        )
        self._abandoned = Counter(
            "dump_ingest_store_requests_abandoned",
            "Requests that were given up because the store did not answer in time.",
            registry=registry,
        )
        self._clock_ahead = Gauge(
            "dump_ingest_clock_skew_seconds",
            "How far the clock of this host is ahead of that of the store, to a second; 0 if unknown.",
            registry=registry,
        )
        for op in STORE_OPS:
            self._seconds.labels(op=op)
            for reason in STORE_REASONS:
                self._errors.labels(op=op, reason=reason)

    def observe(self, event: Event) -> None:
        """Count an event, if it is one of a store."""
        match event:
            case StoreRequested(op=op, error=error):
                self._seconds.labels(op=op).observe(event.seconds)
                if error is not None:
                    self._errors.labels(op=op, reason=error.reason).inc()
            case RequestAbandoned():
                self._abandoned.inc()
            case StoreClockSeen(ahead_s=ahead_s):
                self._clock_ahead.set(ahead_s)


class WorkerMetrics:
    """What the tasks of one process do. Labels do not depend on the dump."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"dump_ingest_{name}", text, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"dump_ingest_{name}", text, buckets=_SECONDS, registry=registry)

        self._attempts = counter("convert_attempts", "Conversion tasks started on this worker.")
        self._failures = Counter(
            "dump_ingest_convert_failures", "Conversion tasks that failed.", ["reason"], registry=registry
        )
        for reason in REASONS:
            self._failures.labels(reason=reason)
        self._in_progress = Gauge(
            "dump_ingest_convert_in_progress", "Conversion tasks running on this worker.", registry=registry
        )
        self._read = counter("convert_read_bytes", "Bytes of dump files read.")
        self._files = counter("convert_files", "Dump files converted, tensors and others.")
        self._duplicates = counter("convert_duplicate_bytes", "Payload bytes that were stored already.")
        self._shards = counter("shards_written", "Shards written.")
        self._shard_bytes = counter("shards_written_bytes", "Bytes of shards written.")
        self._convert_seconds = histogram("convert_duration_seconds", "Duration of conversion tasks.")
        self._publish_seconds = histogram("publish_duration_seconds", "Duration of commits.")

    def observe(self, event: Event) -> None:
        """Count an event, if it is one of the tasks."""
        match event:
            case ConvertStarted():
                self._attempts.inc()
                self._in_progress.inc()
            case Converted(receipt=receipt):
                self._in_progress.dec()
                self._read.inc(receipt.bytes_read)
                self._files.inc(len(receipt.rows))
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
