"""How the last runs of `gc` ended, by the record that they leave in the store."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ingest.metrics.declare import Declare
from ingest.store_gc.last_run import GcRunsRead
from workers.events import Event


class GcMetrics:
    """Ends of `gc`. Two series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything."""
        declare = Declare(registry, "dump_ingest_gc_")
        self._success = declare.gauge(
            "last_success_timestamp_seconds", "Unix time at which gc last ended well; 0 for never."
        )
        self._failure = declare.gauge(
            "last_failure_timestamp_seconds", "Unix time at which gc last failed; 0 for never."
        )

    def observe(self, event: Event) -> None:
        """Show what the record in the store says."""
        if isinstance(event, GcRunsRead):
            self._success.set(event.runs.succeeded_at)
            self._failure.set(event.runs.failed_at)
