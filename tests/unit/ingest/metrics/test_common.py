"""What tells a process and its run from others, and a bounded number of labels for any number of ranks."""

import pytest
from prometheus_client import CollectorRegistry

from ingest.metrics.server import OTHER, ProcessMetrics, RankLabels
from ingest.steps.watcher import DumpState
from tests.metric_values import NOW, value


def test_clock_store_and_expected_ranks(registry: CollectorRegistry) -> None:
    metrics = ProcessMetrics(registry, lambda: NOW, "s3://bucket/run.zarr")
    assert value(registry, "dump_ingest_time_seconds") == NOW
    assert value(registry, "dump_ingest_store_info", store="s3://bucket/run.zarr") == 1
    assert value(registry, "dump_ingest_expected_ranks") == 0
    metrics.observe(DumpState({}, {}, (), expected_ranks=64))
    assert value(registry, "dump_ingest_expected_ranks") == 64
    metrics.observe(DumpState({}, {}, ()))
    assert value(registry, "dump_ingest_expected_ranks") == 64


@pytest.mark.parametrize("given", [0, 8])
def test_what_the_settings_say_counts_more_than_a_rank_table(given: int, registry: CollectorRegistry) -> None:
    metrics = ProcessMetrics(registry, lambda: NOW, expected_ranks=given)
    metrics.observe(DumpState({}, {}, (), expected_ranks=64))
    assert value(registry, "dump_ingest_expected_ranks") == given


def test_ranks_beyond_the_limit_share_a_label() -> None:
    labels = RankLabels(limit=2)
    assert [labels.of(rank) for rank in (7, 3, 5, 7, 9)] == ["7", "3", OTHER, "7", OTHER]
    assert list(labels) == [7, 3, 5, 9]
