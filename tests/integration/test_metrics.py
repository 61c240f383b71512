"""What Prometheus sees of a watcher and of the Dask workers."""

import http.client
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import run, start
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port, http_get
from tests.servers.prometheus import Prometheus, StartPrometheus, promtool_check_metrics

pytestmark = [pytest.mark.dask, pytest.mark.prometheus]


def scrape(port: int) -> str:
    """Return our own metrics as a scrape shows them."""
    status, body = http_get(port, "/metrics")
    assert status == http.client.OK
    lines = body.decode().splitlines(keepends=True)
    return "".join(line for line in lines if "dump_ingest_" in line)


def converted(cluster: DaskCluster) -> float:
    """Return how many files the workers have converted so far."""
    text = "".join(scrape(port) for port in cluster.metrics_ports)
    lines = [line for line in text.splitlines() if line.startswith("dump_ingest_convert_files_total")]
    return sum(float(line.split()[1]) for line in lines)


def by_rank(server: Prometheus, expression: str) -> dict[str, float]:
    return {sample.labels["rank"]: sample.value for sample in server.wait_for(expression)}


def test_watcher_shows_lag_commits_and_anomalies(
    prometheus: StartPrometheus, cluster: DaskCluster, dump_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """From the first scrape on, through pending steps, to the NaN of every rank as the truth has them."""
    recorded = dump_copy("nan-log-2rank")
    truth = json.loads((recorded / "truth.json").read_text())["files"]
    dump, later, port = tmp_path / "dump", tmp_path / "later", free_port()
    words = ("watch", dump, "--store", tmp_path / "run.zarr", "--finish", "--scheduler", cluster.address)
    # A step is complete when a later one has begun, and only then: what pends stays until it was asked for.
    env = {
        "DUMP_INGEST_QUIET_S": "3600",
        "DUMP_INGEST_SETTLE_S": "0.5",
        "DUMP_INGEST_METRICS": f"127.0.0.1:{port}",
    }
    with start(*words, env=env) as watch:
        watch.wait_until(lambda: watch.events("waiting_for_dump"))
        server = prometheus([f"127.0.0.1:{port}"])
        server.wait_for("sum(dump_ingest_watcher_step_failures_total) == 0")
        assert server.query("dump_ingest_build_info == 1")
        for status in ("complete", "partial"):
            assert server.query(f'dump_ingest_watcher_commits_total{{status="{status}"}} == 0')

        shutil.copytree(recorded / "dump", tmp_path / "part", ignore=shutil.ignore_patterns("2", "3"))
        shutil.copytree(recorded / "dump", later)
        (tmp_path / "part").rename(dump)
        server.wait_for("sum(dump_ingest_watcher_pending_steps == 1) == 2")
        nothing_yet = {"0": 0.0, "1": 0.0}
        for kind in ("nan", "pos_inf", "neg_inf"):
            for name in ("anomalous_elements", "anomalies"):
                assert by_rank(server, f'dump_ingest_tensor_{name}_total{{kind="{kind}"}}') == nothing_yet
        assert by_rank(server, "dump_ingest_watcher_committed_step") == {"0": -1, "1": -1}
        assert by_rank(server, "dump_ingest_watcher_pending_files") == {"0": 243, "1": 243}
        lag = by_rank(server, "time() - dump_ingest_watcher_oldest_pending_timestamp_seconds")
        assert all(0 <= seconds < 60 for seconds in lag.values())

        for directory in sorted(later.glob("rank_*/Mlp/0/3")):
            shutil.copytree(directory, directory.with_name("4"))
        for directory in sorted(later.glob("rank_*/Mlp/0/[234]")):
            shutil.move(directory, dump / directory.relative_to(later))
        server.wait_for("count(dump_ingest_watcher_committed_step == 3) == 2", timeout_s=90)
        server.wait_for("sum(dump_ingest_watcher_pending_steps == 1) == 2")

        for rank in ("0", "1"):
            true = [file for name, file in truth.items() if name.startswith(f"rank_{rank}/")]
            for kind in ("nan", "pos_inf", "neg_inf"):
                selector = f'{{kind="{kind}", rank="{rank}"}}'
                [elements] = server.query(f"dump_ingest_tensor_anomalous_elements_total{selector}")
                [tensors] = server.query(f"dump_ingest_tensor_anomalies_total{selector}")
                assert elements.value == sum(file[kind] for file in true)
                assert tensors.value == sum(file[kind] > 0 for file in true)
        assert by_rank(server, "dump_ingest_watcher_newest_step") == {"0": 4, "1": 4}
        [failures] = server.query("sum(dump_ingest_watcher_step_failures_total)")
        assert failures.value == 0
        promtool_check_metrics(scrape(port))
        assert watch.terminate(timeout_s=60) == 0


def test_workers_show_what_they_convert(
    prometheus: StartPrometheus, cluster: DaskCluster, dump_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """On the `/metrics` that every Dask worker has anyway."""
    dump = dump_copy("longnames-1rank") / "dump"
    targets = [f"127.0.0.1:{port}" for port in cluster.metrics_ports]
    # The counters count for as long as a worker lives, and appear with its first task.
    before = converted(cluster)

    run("ingest", dump, "--store", tmp_path / "run.zarr", "--scheduler", cluster.address)

    server = prometheus(targets)
    files = sum(1 for path in dump.rglob("*") if path.is_file())
    server.wait_for(f"sum(dump_ingest_convert_files_total) == {before + files}")
    for name in ("read_bytes_total", "duplicate_bytes_total", "duration_seconds_count"):
        assert server.query(f"dump_ingest_convert_{name} > 0")
    assert server.query("sum(dump_ingest_shards_written_bytes_total) > 0")
    assert server.query("sum(dump_ingest_convert_in_progress) == 0")
    assert server.query('sum(dump_ingest_convert_failures_total{reason="store_unavailable"}) >= 0')
    for port in cluster.metrics_ports:
        if text := scrape(port):
            promtool_check_metrics(text)
