"""What became of dumps after their commit, as metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from ingest.dump_retention.events import ReadBackFailed, RetentionSeen, SourceDeleted
from ingest.dump_retention.policy import NO_NEWS
from ingest.steps.events import SourceKept
from ingest.steps.keep_reasons import KeepReason
from workers.errors import REASONS
from workers.events import Event


class RetentionMetrics:
    """Files deleted and kept, and read-backs. About twenty-five series, whatever the dump."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything; every series exists from the first scrape."""
        self._files = Counter(
            "dump_ingest_watcher_source_deleted_files",
            "Dump files deleted after they had been read back from the store.",
            registry=registry,
        )
        self._bytes = Counter(
            "dump_ingest_watcher_source_deleted_bytes", "Bytes of those files.", registry=registry
        )
        self._kept = Counter(
            "dump_ingest_watcher_source_kept_steps",
            "Times that files of a committed step were found to have to stay in the dump.",
            ["reason"],
            registry=registry,
        )
        self._steps = Gauge(
            "dump_ingest_watcher_read_back_pending_steps",
            "Committed steps that wait to be read back and deleted.",
            registry=registry,
        )
        self._pending = Gauge(
            "dump_ingest_watcher_read_back_pending_bytes", "Bytes of their files.", registry=registry
        )
        self._failures = Counter(
            "dump_ingest_watcher_read_back_failures",
            "Committed steps that could not be read back; nothing of them was deleted.",
            ["reason"],
            registry=registry,
        )
        for reason in REASONS:
            self._failures.labels(reason=reason)
        for kept in set(KeepReason) - NO_NEWS:
            self._kept.labels(reason=kept.value)

    def observe(self, event: Event) -> None:
        """Take in what happened."""
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
