"""The gauge of the heartbeat."""

import time

from prometheus_client import CollectorRegistry

from ingest import heartbeat
from ingest.metrics.heartbeat import register_heartbeat


def test_it_shows_the_last_beat() -> None:
    registry = CollectorRegistry()
    register_heartbeat(registry)
    heartbeat.beat()
    first = registry.get_sample_value("dump_ingest_heartbeat_timestamp_seconds")
    time.sleep(0.5)
    second = registry.get_sample_value("dump_ingest_heartbeat_timestamp_seconds")
    assert first is not None
    assert second is not None
    assert abs(second - first) < 0.4
