"""What went wrong in a watcher, by reason."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ingest.dispatch.outcomes import StepFailed, StepStale, TaskRetried
from ingest.dispatch.task_monitor import WorkerReplaced
from ingest.metrics.declare import Declare
from ingest.steps.events import DependencyDown
from workers.errors import REASONS
from workers.events import Event


class FailureMetrics:
    """Failed steps, retried tasks and outages. Three series for each reason."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything; every series exists from the first scrape."""
        declare = Declare(registry, "dump_ingest_watcher_")
        self._failures = declare.counter_by("reason", REASONS, "step_failures", "Steps given up for now.")
        self._retries = declare.counter_by("reason", REASONS, "task_retries", "Tasks submitted again.")
        self._outages = declare.counter_by(
            "reason", REASONS, "troubles", "Times that the store or the cluster was not available."
        )
        self._replaced = declare.counter(
            "workers_replaced", "Workers that were replaced because a task on them did not come to an end."
        )

    def observe(self, event: Event) -> None:
        """Count a failure."""
        match event:
            case StepFailed(error=error):
                self._failures.labels(reason=error.reason).inc()
            case StepStale():
                self._retries.labels(reason="source_changed").inc()
            case TaskRetried(error=error):
                self._retries.labels(reason=error.reason).inc()
            case DependencyDown(error=error):
                self._outages.labels(reason=error.reason).inc()
            case WorkerReplaced():
                self._replaced.inc()
