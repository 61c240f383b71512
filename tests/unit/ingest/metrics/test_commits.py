"""Commits as metrics: what they have stored, how long they took, and what is abnormal in them."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from ingest.dispatch.outcomes import StepCommitted
from ingest.metrics.commits import CommitMetrics
from ingest.metrics.ranks import RankLabels
from tests.dumps import DumpLibrary
from tests.metric_values import NOW, value
from tests.pipeline import plan_all
from workers.store.model import CommitSummary
from workers.tasks.model import StepPlan


@pytest.fixture
def plan(dumps: DumpLibrary, summary: CommitSummary, tmp_path: Path) -> StepPlan:
    plans = plan_all(dumps["nan-log-2rank"] / "dump", tmp_path / "other.zarr")
    return next(plan for plan in plans if plan.key == summary.key)


def test_a_commit_is_counted_with_its_bytes_and_anomalies(
    registry: CollectorRegistry, summary: CommitSummary, plan: StepPlan
) -> None:
    metrics = CommitMetrics(registry, lambda: NOW, RankLabels())
    metrics.observe(StepCommitted(plan, replace(summary, quarantined=2, overflows=3, disagreements=4), 2.0))
    watcher = "dump_ingest_watcher_"
    assert value(registry, f"{watcher}commits_total", status="complete") == 1
    assert value(registry, f"{watcher}commits_total", status="partial") == 0
    assert value(registry, f"{watcher}committed_source_bytes_total") == summary.raw_bytes
    assert value(registry, f"{watcher}committed_stored_bytes_total") == summary.stored_bytes
    assert value(registry, f"{watcher}quarantined_files_total") == 2
    assert value(registry, f"{watcher}statistics_disagreements_total") == 4
    assert value(registry, f"{watcher}step_duration_seconds_sum") == 2
    assert value(registry, "dump_ingest_overflow_records_total", rank="1") == 3
    assert value(registry, "dump_ingest_tensor_anomalies_total", rank="1", kind="nan") == 5
    assert value(registry, "dump_ingest_tensor_anomalous_elements_total", rank="1", kind="pos_inf") == 0


def test_the_delay_is_that_of_the_newest_file(
    registry: CollectorRegistry, summary: CommitSummary, plan: StepPlan
) -> None:
    entries = [
        entry._replace(source=replace(entry.source, mtime_ns=int((NOW - number) * 1e9)))
        for number, entry in enumerate(plan.entries, 7)
    ]
    metrics = CommitMetrics(registry, lambda: NOW, RankLabels())
    metrics.observe(StepCommitted(replace(plan, entries=entries), summary, 2.0))
    assert value(registry, "dump_ingest_watcher_commit_delay_seconds_sum") == pytest.approx(7)


def test_commits_without_tensors_are_counted(
    registry: CollectorRegistry, summary: CommitSummary, plan: StepPlan
) -> None:
    metrics = CommitMetrics(registry, lambda: NOW, RankLabels())
    metrics.observe(StepCommitted(plan, summary, 1.0))
    metrics.observe(StepCommitted(replace(plan, without_tensors="the disk is full"), summary, 1.0))
    assert value(registry, "dump_ingest_watcher_commits_without_tensors_total") == 1


def test_series_of_a_rank_begin_at_zero_when_it_is_known(registry: CollectorRegistry) -> None:
    labels = RankLabels()
    CommitMetrics(registry, lambda: NOW, labels)
    assert value(registry, "dump_ingest_overflow_records_total", rank="9") is None
    labels.of(9)
    assert value(registry, "dump_ingest_overflow_records_total", rank="9") == 0
    assert value(registry, "dump_ingest_tensor_anomalies_total", rank="9", kind="neg_inf") == 0
