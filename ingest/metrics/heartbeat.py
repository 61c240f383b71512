"""When the main loop of this process last made progress."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Gauge

from ingest.heartbeat import last_beat

#: Without a heartbeat for that long, a process hangs. A scan of a very large dump beats for each directory.
STALE_S = 600.0


def register_heartbeat(registry: CollectorRegistry) -> None:
    """Register the gauge: it goes on through a scan of half an hour, and stands still if the scan hangs."""
    Gauge(
        "dump_ingest_heartbeat_timestamp_seconds",
        "Unix time when the process last made progress.",
        registry=registry,
    ).set_function(last_beat)


def hang() -> str:
    """Return that the process hangs, and for how long; "" if it makes progress: the answer of `/live`."""
    age_s = time.time() - last_beat()
    return f"hangs: it has made no progress for {age_s:.0f} s" if age_s > STALE_S else ""
