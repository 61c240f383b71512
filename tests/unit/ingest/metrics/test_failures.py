"""Failures by reason."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.dispatch.outcomes import StepFailed, StepStale, TaskRetried
from ingest.metrics.failures import FailureMetrics
from ingest.steps.events import DependencyDown
from tests.dumps import DumpLibrary
from tests.metric_values import value
from tests.pipeline import plan_all
from workers.errors import ClusterError, StoreUnavailable


def test_failures_and_troubles_are_counted_by_reason(
    registry: CollectorRegistry, dumps: DumpLibrary, tmp_path: Path
) -> None:
    metrics = FailureMetrics(registry)
    plan = plan_all(dumps["dtypes-1rank"] / "dump", tmp_path)[0]
    metrics.observe(StepFailed(plan, StoreUnavailable("away")))
    metrics.observe(DependencyDown(ClusterError("away")))
    assert value(registry, "dump_ingest_watcher_step_failures_total", reason="store_unavailable") == 1
    assert value(registry, "dump_ingest_watcher_troubles_total", reason="cluster") == 1


def test_tasks_that_are_submitted_again_are_counted_by_reason(
    registry: CollectorRegistry, dumps: DumpLibrary, tmp_path: Path
) -> None:
    metrics = FailureMetrics(registry)
    plan = plan_all(dumps["dtypes-1rank"] / "dump", tmp_path)[0]
    metrics.observe(TaskRetried(plan, StoreUnavailable("away"), 1, 0.5))
    metrics.observe(StepStale(plan, "a file changed"))
    for reason in ("store_unavailable", "source_changed"):
        assert value(registry, "dump_ingest_watcher_task_retries_total", reason=reason) == 1
