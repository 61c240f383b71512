"""Metrics of the deletion of dump files after their commit."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ingest.dump_retention.events import ReadBackFailed, RetentionSeen, SourceDeleted
from ingest.dump_retention.policy import NO_NEWS
from ingest.metrics.declare import Declare
from ingest.steps.events import SourceKept
from ingest.steps.keep_reasons import KeepReason
from workers.errors import REASONS
from workers.events import Event


class RetentionMetrics:
    """Files deleted and kept, and read-backs. About twenty-five series, whatever the dump."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything; every series exists from the first scrape."""
        declare = Declare(registry, "dump_ingest_watcher_")
        self._files = declare.counter(
            "source_deleted_files", "Dump files deleted after they were read back from the store."
        )
        self._bytes = declare.counter("source_deleted_bytes", "Bytes of those files.")
        self._kept = declare.counter_by(
            "reason",
            sorted(reason.value for reason in set(KeepReason) - NO_NEWS),
            "source_kept_steps",
            "Times that files of a committed step had to stay in the dump.",
        )
        self._steps = declare.gauge(
            "read_back_pending_steps", "Committed steps that wait to be read back and deleted."
        )
        self._pending = declare.gauge("read_back_pending_bytes", "Bytes of their files.")
        self._failures = declare.counter_by(
            "reason",
            REASONS,
            "read_back_failures",
            "Committed steps that could not be read back; nothing of them was deleted.",
        )

    def observe(self, event: Event) -> None:
        """Count what happens to a dump."""
        match event:
            case SourceDeleted(files=files, nbytes=nbytes, dry_run=False):
                self._files.inc(files)
                self._bytes.inc(nbytes)
            case SourceKept(reason=reason):
                self._kept.labels(reason=reason.value).inc()
            case ReadBackFailed(error=error):
                self._failures.labels(reason=error.reason).inc()
            case RetentionSeen(steps=steps, nbytes=nbytes):
                self._steps.set(steps)
                self._pending.set(nbytes)
