"""What workers export, and requests to the store."""

from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.metric_values import value
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import plan_all, run
from workers import events
from workers.errors import SourceChanged
from workers.tasks.metrics import WorkerMetrics
from workers.tasks.model import ConvertFailed, ConvertStarted


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_a_conversion_is_counted_from_its_start_to_its_receipt(
    registry: CollectorRegistry, made: MadeDump, store: Path
) -> None:
    made.add(np.arange(100, dtype="<f4"), tensor_name(slot=0))
    made.add(np.arange(100, dtype="<f4"), tensor_name(slot=1))
    metrics = WorkerMetrics(registry)
    (plan,) = plan_all(made.root, store)
    in_progress = []

    def observe(event: events.Event) -> None:
        metrics.observe(event)
        in_progress.append(value(registry, "dump_ingest_convert_in_progress"))

    events.subscribe(observe)
    try:
        run(plan)
    finally:
        events.unsubscribe(observe)
    assert max(number or 0 for number in in_progress) == 1
    assert value(registry, "dump_ingest_convert_in_progress") == 0
    assert value(registry, "dump_ingest_convert_attempts_total") == 1
    assert value(registry, "dump_ingest_convert_files_total") == 2
    assert value(registry, "dump_ingest_convert_duplicate_bytes_total") == 400
    assert value(registry, "dump_ingest_shards_written_total") == 1
    assert value(registry, "dump_ingest_publish_duration_seconds_count") == 1


@pytest.mark.parametrize(
    ("error", "reason"), [(SourceChanged("it changed"), "source_changed"), (ValueError("broken"), "other")]
)
def test_a_failed_conversion_is_counted_by_reason(
    registry: CollectorRegistry, error: Exception, reason: str, made: MadeDump, store: Path
) -> None:
    made.add(np.arange(3, dtype="<f4"))
    metrics = WorkerMetrics(registry)
    (plan,) = plan_all(made.root, store)
    metrics.observe(ConvertStarted(plan.jobs[0]))
    metrics.observe(ConvertFailed(plan.jobs[0], error))
    assert value(registry, "dump_ingest_convert_failures_total", reason=reason) == 1
    assert value(registry, "dump_ingest_convert_in_progress") == 0
