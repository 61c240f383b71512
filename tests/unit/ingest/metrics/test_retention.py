"""What becomes of dumps after their commit, as metrics."""

from prometheus_client import CollectorRegistry

from ingest.dump_retention.events import ReadBackFailed, RetentionSeen, SourceDeleted
from ingest.metrics.retention import RetentionMetrics
from ingest.steps.events import SourceKept
from ingest.steps.keep_reasons import KeepReason
from tests.metric_values import value
from workers.errors import DamagedStore
from workers.model import StepKey

KEY = StepKey(0, 3)
PREFIX = "dump_ingest_watcher_"


def test_deleted_files_are_counted_unless_it_was_a_dry_run(registry: CollectorRegistry) -> None:
    metrics = RetentionMetrics(registry)
    metrics.observe(SourceDeleted(KEY, 7, 700, 0.1, dry_run=True))
    assert value(registry, f"{PREFIX}source_deleted_files_total") == 0
    metrics.observe(SourceDeleted(KEY, 7, 700, 0.1))
    assert value(registry, f"{PREFIX}source_deleted_files_total") == 7
    assert value(registry, f"{PREFIX}source_deleted_bytes_total") == 700


def test_what_is_kept_and_what_cannot_be_read_back_is_counted_by_reason(registry: CollectorRegistry) -> None:
    metrics = RetentionMetrics(registry)
    metrics.observe(SourceKept(KEY, KeepReason.NOT_STORED, 2, "table.csv"))
    metrics.observe(ReadBackFailed(KEY, DamagedStore("a shard is missing"), 1.0))
    assert value(registry, f"{PREFIX}source_kept_steps_total", reason=KeepReason.NOT_STORED.value) == 1
    assert value(registry, f"{PREFIX}source_kept_steps_total", reason=KeepReason.DENIED.value) == 0
    assert value(registry, f"{PREFIX}read_back_failures_total", reason="damaged_store") == 1


def test_what_waits_is_shown_as_of_the_last_look(registry: CollectorRegistry) -> None:
    metrics = RetentionMetrics(registry)
    metrics.observe(RetentionSeen(4, 400))
    metrics.observe(RetentionSeen(1, 100))
    assert value(registry, f"{PREFIX}read_back_pending_steps") == 1
    assert value(registry, f"{PREFIX}read_back_pending_bytes") == 100
