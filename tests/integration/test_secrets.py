"""A secret that is easy to recognise goes through everything, and comes out nowhere."""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import fsspec
import numpy as np
import pytest

from ingest.cli.app import COMMANDS, main
from ingest.service.one_shot import ingest_once
from tests.cli import PROMPT, run, start
from tests.servers.ceph import CephS3, S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port
from tests.services import FakeClient, make_service
from tests.stores import MadeDump, tensor_name
from workers.store.opening import connect, resolve
from workers.tasks import run as tasks

pytestmark = [pytest.mark.s3, pytest.mark.dask, pytest.mark.timeout(240)]

#: Of the webhook, and in places where no secret belongs. That of the store is the one of Ceph.
CANARY = "canary-0f6d1b"


@pytest.fixture
def url(
    ceph: CephS3, s3_bucket: S3Bucket, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> str:
    """Where a store may be made; this process has what it takes, and is as talkative as it can be."""
    assert "secret" in ceph.secret_key
    for name in [name for name in os.environ if name.startswith("DUMP_INGEST_")]:
        monkeypatch.delenv(name)
    for name, value in {**PROMPT, **s3_environment, **_TALKATIVE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DUMP_INGEST_WORKERS")  # `consolidate` would start a cluster in this process
    return s3_bucket.url


_TALKATIVE = {
    "DUMP_INGEST_LOG_LEVEL": "debug",
    "DUMP_INGEST_WEBHOOK_TOKEN": CANARY,
    "DUMP_INGEST_TRIGGER_TOKEN": CANARY,
    "DUMP_INGEST_MARGINALS": "all",
    "COLUMNS": "300",
}


#: Of a dump by MindSpore, for `check`.
_CONFIGURATION = """{
    "common_dump_settings": {
        "dump_mode": 0, "path": "/dump", "net_name": "Net", "iteration": "all", "input_output": 0,
        "kernels": [], "support_device": [0]
    },
    "e2e_dump_settings": {"enable": true, "trans_flag": true}
}"""


@pytest.fixture
def dump(tmp_path: Path) -> MadeDump:
    """Two ranks of two steps, with a NaN."""
    (tmp_path / "data_dump.json").write_text(_CONFIGURATION)
    made = MadeDump(tmp_path / "dump")
    for rank in range(2):
        for step in range(2):
            values = np.array([1.0, np.nan if step else rank], "<f4")
            made.add(values, tensor_name("MatMul.net_MatMul-op1"), rank=rank, step=step)
    return made


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Run a command in this process; return all that it said, and its exit code in front."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["dump-ingest", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return f"{end.value.code or 0} {printed.out}{printed.err}"

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _commands(dump: Path, store: str, target: Path) -> dict[str, list[list[object]]]:
    """Return for each command words with which it answers from a store."""
    name = "*MatMul*"
    return {
        "ls": [["ls", store, "--json"], ["ls", store, "--problems"]],
        "find": [["find", store, "--where", "nan_count > 0", "--json"]],
        "anomalies": [["anomalies", store, "--json"]],
        "origin": [["origin", store, "--json"]],
        "divergence": [["divergence", store, "--json"]],
        "compare": [["compare", f"{store}@0", f"{store}@1", "--json"]],
        "compare-weights": [["compare-weights", f"{store}@0", f"{store}@1", "--json"]],
        "trend": [["trend", store, name, "--json"]],
        "heatmap": [["heatmap", store, name, "--json"]],
        "precision": [["precision", store, "--json"]],
        "quantiles": [["quantiles", store, name, "--json"]],
        "outliers": [["outliers", store, "--json"]],
        "localize": [["localize", f"{store}@0,0", f"{store}@1,0", "--json"]],
        "sketch": [["sketch", store, "--json"]],
        "layout": [["layout", store, "--json"]],
        "trampled": [["trampled", store, "--json"]],
        "audit": [["audit", store, "--json"]],
        "next": [["next", store, name, "--for", "tensor", "--json"]],
        "check": [["check", dump.with_name("data_dump.json"), "--store", store]],
        "wait": [["wait", store, "--until", "step", "0", "--timeout", "1", "--json"]],
        "show": [["show", store, "--step", "0", "--rank", "0", name]],
        "export": [["export", store, target, "--json"]],
        "verify": [["verify", store, "--json"]],
        "repair": [["repair", store, "--json"]],
        "consolidate": [["consolidate", store]],
        "gc": [["gc", store, "--keep-last", "1", "--json"]],
        "doctor": [["doctor", dump, "--store", store]],
        "rules": [["rules", "list"], ["rules", "test", store]],
        "skill": [["skill"]],
        "report": [["report", store, "--out", target.with_suffix(".html")]],
        "config": [["config", "show"], ["config", "validate"], ["config", "schema"]],
    }


def test_no_command_says_a_secret(
    url: str, ceph: CephS3, dump: MadeDump, s3_cluster: DaskCluster, says: Callable[..., str]
) -> None:
    """Right credentials, and credentials in a URL; all output, all objects, and what a cluster shows."""
    target = dump.root.with_name("exported")
    words: dict[str, list[list[object]]] = {
        "ingest": [["ingest", dump.root, "--store", url, "--scheduler", s3_cluster.address, "--json"]],
        **_commands(dump.root, url, target),
    }
    assert words.keys() | {"watch", "serve", "mcp"} == COMMANDS.keys()
    failed = {}
    for uses in words.values():
        for use in uses:
            said = says(*use)
            assert ceph.secret_key not in said, use
            assert CANARY not in said, use
            if said.startswith("2 "):  # a mistake in these words would prove nothing
                failed[" ".join(map(str, use))] = said
    assert failed == {}
    assert ceph.secret_key not in target.with_suffix(".html").read_text()

    planted = f"s3://somebody:{CANARY}@bucket/run.zarr"
    for uses in _commands(dump.root, planted, target).values():
        for use in uses:
            said = says(*use)
            assert CANARY not in said, use
            if planted in map(str, use):
                assert said.startswith("2 "), use
    for command in ("serve", "mcp"):
        said = says(command, planted)
        assert said.startswith("2 ")
        assert CANARY not in said

    files = fsspec.filesystem("s3", **ceph.storage_options)
    files.invalidate_cache()
    objects = files.cat(files.find(url))
    assert len(objects) > 10
    assert [name for name, data in objects.items() if _holds(data, ceph.secret_key)] == []

    pages = [_page(port, path) for port in _ports(s3_cluster) for path in _PAGES]
    assert any(b"dask_scheduler_tasks" in page for page in pages)
    assert [page for page in pages if _holds(page, ceph.secret_key)] == []


_PAGES = (
    "metrics",
    "json/identity.json",
    "info/main/workers.html",
    "info/logs.html",
    "info/call-stacks.html",
)


def _ports(cluster: DaskCluster) -> list[int]:
    return [cluster.scheduler_metrics_port, *cluster.metrics_ports]


def _page(port: int, path: str) -> bytes:
    try:
        with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
            page: bytes = answer.read()
            return page
    except HTTPError as exc:  # a worker has fewer pages
        return exc.read()


def _holds(data: bytes, secret: str) -> bool:
    return secret.encode() in data or CANARY.encode() in data


def test_no_log_and_no_metric_of_a_watcher_says_a_secret(
    url: str, ceph: CephS3, dump: MadeDump, s3_environment: dict[str, str]
) -> None:
    """Also when what it asks is refused, which is when libraries log requests."""
    port = free_port()
    env = {**s3_environment, **_TALKATIVE, "DUMP_INGEST_METRICS": f"127.0.0.1:{port}"}
    with start("watch", dump.root, "--store", url, env=env) as watch:
        watch.wait_until(lambda: len(watch.events("step_committed")) == 4, timeout_s=120)
        metrics = _page(port, "metrics")
        watch.terminate()
    refused = run("verify", url, code=1, env={**env, "AWS_SECRET_ACCESS_KEY": f"not-{CANARY}"})
    assert b"dump_ingest_store_info" in metrics
    for said in (metrics.decode(), watch.said, refused.stdout, refused.stderr):
        assert ceph.secret_key not in said
        assert CANARY not in said


def test_no_task_carries_a_secret(url: str, ceph: CephS3, dump: MadeDump) -> None:
    """Neither its key, which dashboards show, nor its arguments, which travel over the network."""
    client: Any = FakeClient(eager=True)
    options = {"client_kwargs": {"endpoint_url": ceph.endpoint_url}}
    service = make_service(dump.root, connect(resolve(url, options)), client=client)
    report = ingest_once(service, threading.Event())
    assert len(report.commits) == 4
    assert client.futures
    for future in client.futures:
        plans = tasks.unpack_steps(*future.arguments)
        for carried in (future.key.encode(), *future.arguments, pickle.dumps(plans), repr(plans).encode()):
            assert not _holds(carried, ceph.secret_key)
        assert ceph.endpoint_url in repr(plans), "what options it may carry shows in it"
