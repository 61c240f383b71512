"""When the main loop of this process last got on with its work."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from ingest.heartbeat import last_beat


def register_heartbeat(registry: CollectorRegistry) -> None:
    """Register the gauge: it goes on through a look of half an hour, and stands still if the look hangs."""
    Gauge(
        "dump_ingest_heartbeat_timestamp_seconds",
        "Unix time when the process last got on with its work.",
        registry=registry,
    ).set_function(last_beat)
