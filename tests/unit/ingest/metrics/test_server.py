"""Serving metrics."""

import pytest
from prometheus_client import CollectorRegistry

from ingest.metrics import WatcherMetrics, serve
from tests.servers.process import free_port, http_get
from workers.errors import UsageError


def test_serves_memory_and_processor_time_beside(registry: CollectorRegistry) -> None:
    WatcherMetrics(registry)
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}")
    try:
        text = http_get(port, "/metrics")[1].decode()
    finally:
        stop()
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "256.0.0.1:9108"])
def test_an_address_that_cannot_be_served_is_refused(registry: CollectorRegistry, address: str) -> None:
    with pytest.raises(UsageError, match="cannot serve"):
        serve(registry, address)


def test_says_whether_the_process_is_ready(registry: CollectorRegistry) -> None:
    reason = [""]
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}", unready=lambda: reason[0])
    try:
        assert http_get(port, "/ready") == (200, b"ready\n")
        reason[0] = "nothing of the dump can be read"
        assert http_get(port, "/ready") == (503, b"nothing of the dump can be read\n")
    finally:
        stop()
