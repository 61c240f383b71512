"""Ends of gc as metrics."""

from prometheus_client import CollectorRegistry

from ingest.metrics.gc import GcMetrics
from ingest.store_gc.last_run import GcRuns, GcRunsRead
from tests.metric_values import value


def test_shows_what_the_record_says(registry: CollectorRegistry) -> None:
    metrics = GcMetrics(registry)
    assert value(registry, "dump_ingest_gc_last_failure_timestamp_seconds") == 0
    metrics.observe(GcRunsRead(GcRuns(10.0, 20.0, "denied")))
    assert value(registry, "dump_ingest_gc_last_success_timestamp_seconds") == 10
    assert value(registry, "dump_ingest_gc_last_failure_timestamp_seconds") == 20
