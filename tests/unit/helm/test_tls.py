"""TLS of the chart, with the very certificates, configuration and arguments that it renders."""

import base64
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.charts import (
    Object,
    changed,
    containers,
    data,
    environment,
    find,
    objects,
    of_profile,
    pods,
    profile,
    words,
)
from tests.cli import run
from tests.servers.process import ServerGroup, answers, free_port, http_get

ADDRESS = "tls://run1-dump-ingest-scheduler.train.svc:8786"


def test_every_rendering_has_one_secret_that_all_pods_agree_on() -> None:
    """Templates are rendered one by one: each could make a CA of its own."""
    first, second = (objects(profile("daemonset")) for _ in range(2))
    sums = {
        annotations["checksum/tls"]
        for _, pod in pods(first)
        if "checksum/tls" in (annotations := pod["metadata"].get("annotations", {}))
    }
    assert len(sums) == 1
    # A new one each time, where Helm cannot look into the cluster; so the sums must change with it.
    assert find(first, "Secret", "-dask-tls")["data"] != find(second, "Secret", "-dask-tls")["data"]
    assert str(sums.pop()) not in str(second)


@pytest.mark.parametrize("name", ["standalone", "tls-off"])
def test_without_tls_there_is_no_trace_of_it(name: str) -> None:
    assert "dask-tls" not in str(of_profile(name))
    assert "tls://" not in str(of_profile(name))


class RenderedCluster:
    """The rendered scheduler and a worker from beside a watcher, as processes on loopback."""

    def __init__(self, servers: ServerGroup, found: list[Object]) -> None:
        self.servers = servers
        self.config, self.certificates = servers.root / "dask", servers.root / "tls"
        for directory in (self.config, self.certificates):
            directory.mkdir()
        by_name = {container["name"]: container for _, pod in pods(found) for container in containers(pod)}
        self.watcher = by_name["watcher"]
        declared = [port for name in ("scheduler", "worker-0") for port in by_name[name]["ports"]]
        # The ports of the containers may be taken here.
        self.ports = {port["name"]: free_port() for port in declared}
        self.places = {
            ADDRESS: f"tls://127.0.0.1:{self.ports['dask']}",
            "/etc/dask-tls": str(self.certificates),
            "=/tmp": f"={servers.root}",
            **{str(port["containerPort"]): str(self.ports[port["name"]]) for port in declared},
        }
        for name, text in data(found, "-dask").items():
            (self.config / name).write_text(self.moved(text))
        for name, encoded in find(found, "Secret", "-dask-tls")["data"].items():
            (self.certificates / name).write_bytes(base64.b64decode(encoded))
        self.start(by_name["scheduler"], "http")
        self.start(by_name["worker-0"], "http-0")

    @property
    def address(self) -> str:
        return self.places[ADDRESS]

    def moved(self, text: str) -> str:
        """Replace what holds in a container by what holds here."""
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def start(self, container: Object, http: str) -> None:
        variables = [f"{name}={value}" for name, value in environment(container).items() if name != "HOME"]
        program = str(Path(sys.executable).with_name(container["command"][0]))
        arguments = [self.moved(word) for word in words(container)[1:]]
        self.servers.start(
            container["name"], ["env", f"DASK_CONFIG={self.config}", *variables, program, *arguments]
        )
        self.servers.wait_for(container["name"], lambda: answers(self.ports[http], "/health"), timeout_s=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RenderedCluster]:
    values = changed(profile("daemonset"), storage={}, watcher__worker__resources={})
    with ServerGroup("chart") as servers:
        yield RenderedCluster(servers, objects(values))


@pytest.mark.campaign
@pytest.mark.dask
def test_rendered_scheduler_worker_and_client_work_together(cluster: RenderedCluster, tmp_path: Path) -> None:
    """The watcher's pod finds the worker beside it, over TLS, and nothing is missing."""
    watcher = {n: v for n, v in environment(cluster.watcher).items() if n.startswith("DUMP_INGEST_")}
    watcher.pop("DUMP_INGEST_CONFIG")
    watcher |= {"DUMP_INGEST_SCHEDULER": cluster.address, "DASK_CONFIG": str(cluster.config)}
    checks = run("doctor", "--store", tmp_path / "run.zarr", "--json", env=watcher).json
    assert [check for check in checks if not check["ok"]] == []
    (scheduler,) = (check["detail"] for check in checks if check["check"] == "scheduler")
    assert "1 worker, 1 thread, encrypted" in scheduler
    # Its own metrics before any task, and Dask's.
    metrics = http_get(cluster.ports["http-0"], "/metrics")[1].decode()
    assert "dump_ingest_convert_attempts_total" in metrics
    assert "dask_worker_" in metrics
    assert "dask_scheduler_desired_workers" in http_get(cluster.ports["http"], "/metrics")[1].decode()


@pytest.mark.dask
def test_who_has_no_certificate_is_refused(cluster: RenderedCluster) -> None:
    for name in ("dask", "worker-0"):
        context = ssl.create_default_context(cafile=str(cluster.certificates / "ca.crt"))
        context.check_hostname = False
        with (
            socket.create_connection(("127.0.0.1", cluster.ports[name]), timeout=5) as plain,
            pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
            context.wrap_socket(plain) as wrapped,
        ):
            wrapped.recv(1)  # TLS 1.3 tells only now
