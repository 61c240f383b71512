"""Serving metrics."""

import time

import pytest
from prometheus_client import CollectorRegistry

from deploy.container import health
from ingest.heartbeat import beat
from ingest.metrics import WatcherMetrics, heartbeat, serve
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


def test_says_whether_the_process_hangs(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}")
    try:
        beat()
        assert http_get(port, "/live") == (200, b"live\n")
        last = time.time() - health.STALE_S - 60
        monkeypatch.setattr(heartbeat, "last_beat", lambda: last)
        status, reason = http_get(port, "/live")
        assert status == 503
        assert reason.startswith(b"hangs: it has made no progress for 66")
    finally:
        stop()


@pytest.mark.parametrize("path", ["/health", "/healthz", "/reday"])
def test_a_probe_of_a_path_that_does_not_exist_fails(registry: CollectorRegistry, path: str) -> None:
    """The metrics as an answer would make such a probe succeed for ever."""
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}", {"/steps": bytes})
    try:
        assert http_get(port, path) == (404, b"served here: /live, /metrics, /ready, /steps\n")
        assert http_get(port, "/")[1].startswith(b"# HELP")
    finally:
        stop()


def test_containers_and_kubernetes_wait_equally_long() -> None:
    assert health.STALE_S == heartbeat.STALE_S
