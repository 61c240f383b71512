import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest, start_http_server

from tests.servers.process import ServerError
from tests.servers.prometheus import StartPrometheus, promtool_check_metrics

pytestmark = pytest.mark.prometheus


@pytest.fixture
def target() -> Iterator[str]:
    registry = CollectorRegistry()
    Gauge("test_lag_seconds", "How far behind.", ["rank"], registry=registry).labels(rank="3").set(1.5)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_scrapes_its_targets_and_fires_alerts(
    prometheus: StartPrometheus, target: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yml"
    lag = {"alert": "Lag", "expr": "test_lag_seconds > 1"}
    rules.write_text(json.dumps({"groups": [{"name": "test", "rules": [lag]}]}))
    server = prometheus([target], rules=[rules])

    [sample] = server.wait_for("test_lag_seconds")
    assert sample.value == 1.5
    assert sample.labels["rank"] == "3"

    [alert] = server.wait_for('ALERTS{alertstate="firing"}')
    assert alert.labels["alertname"] == "Lag"


def test_invalid_query_is_distinguished_from_an_empty_result(prometheus: StartPrometheus) -> None:
    server = prometheus([])
    assert server.query("up") == []
    with pytest.raises(ValueError, match="parse error"):
        server.query("sum(")


def test_linter_finds_a_badly_named_metric(prometheus: StartPrometheus) -> None:
    del prometheus  # requested only because it skips the test if Prometheus is missing
    registry = CollectorRegistry()
    Gauge("test_lag_seconds", "How far behind.", registry=registry)
    promtool_check_metrics(generate_latest(registry).decode())

    Gauge("test_lag_total", "How far behind.", registry=registry)
    with pytest.raises(ServerError, match="test_lag_total"):
        promtool_check_metrics(generate_latest(registry).decode())
