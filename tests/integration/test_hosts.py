"""Several hosts, each with a dump on a disk of its own: tasks stay where the files are."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest

from tests.checker import check, download
from tests.servers.ceph import S3Bucket
from tests.servers.network import Forwarder, Network
from tests.servers.process import ServerGroup, run_tool
from tests.stores import MadeDump, tensor_name

pytestmark = [pytest.mark.dask, pytest.mark.s3, pytest.mark.campaign]

HOSTS = ["node-a", "node-b"]
_BIN = Path(sys.executable).parent
#: How long the link of a host is cut.
_CUT_S = 30.0
#: A Dask worker ends when it has lost its scheduler: its unit has `Restart=always`.
_ALWAYS = ("sh", "-c", 'while :; do "$@"; sleep 1; done', "sh")
_FILES, _ELEMENTS = 8, 512 * 1024


class Site:
    """A scheduler on one host, on each of the others a watcher with a worker beside it; TLS between them."""

    def __init__(self, network: Network, store: str, endpoint: str, root: Path) -> None:
        self.network = network
        self.root = root
        self._servers = ServerGroup("hosts")
        self._store = store
        self.scheduler = f"tls://{network.address('head')}:8786"
        self.plain = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DASK_")},
            "AWS_ENDPOINT_URL": endpoint,
            "DUMP_INGEST_SCHEDULER_TIMEOUT_S": "20",
        }
        _make_certificates(root)
        tls = {"CA_FILE": root / "ca.pem"}
        for role in ("SCHEDULER", "WORKER", "CLIENT"):
            tls |= {f"{role}__CERT": root / "cert.pem", f"{role}__KEY": root / "key.pem"}
        self.with_tls = {
            **self.plain,
            "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
            **{f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(path) for name, path in tls.items()},
        }

    def __enter__(self) -> Self:
        head = self.network.address("head")
        self._start(
            "head", "scheduler", "dask", "scheduler", "--host", head, "--port", "8786", "--no-dashboard"
        )
        for host in HOSTS:
            address = self.network.address(host)
            options = [
                "--host",
                address,
                "--resources",
                f"{host}=1",
                "--nthreads",
                "1",
                "--memory-limit",
                "0",
            ]
            local = ["--local-directory", str(self.root / f"worker-{host}")]
            self._start(
                host, f"worker-{host}", "dask", "worker", self.scheduler, "--no-nanny", *options, *local
            )
            self._start(
                host, f"watcher-{host}", "dump-ingest", "watch", str(self.dump(host)), *self._flags(host)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def dump(self, host: str) -> Path:
        """Return the directory that a host dumps into."""
        path = self.root / f"disk-of-{host}" / "dump"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def run_on(self, host: str, *words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        return subprocess.run(
            [*self.network.inside(host), str(_BIN / words[0]), *words[1:]],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def said(self) -> str:
        """Return the last words of all processes."""
        names = ("scheduler", *(f"{role}-{host}" for host in HOSTS for role in ("worker", "watcher")))
        return "\n".join(f"--- {name}\n{self._servers.log_tail(name, 12)}" for name in names)

    def _flags(self, host: str) -> list[str]:
        del host
        return ["--store", self._store, "--scheduler", self.scheduler, "--quiet", "1", "--metrics", ""]

    def _start(self, host: str, name: str, program: str, *arguments: str) -> None:
        own = {"DUMP_INGEST_WORKER_RESOURCES": f"{host}=1"} if name.startswith("watcher") else {}
        variables = [f"{key}={value}" for key, value in {**self.with_tls, **own}.items()]
        command = ["env", "-i", *variables, *_ALWAYS, str(_BIN / program), *arguments]
        self._servers.start(name, [*self.network.inside(host), *command])


def _make_certificates(root: Path) -> None:
    """Make an authority, and one certificate that it signs; Dask looks at nothing but the signature."""
    (root / "ca.cnf").write_text("basicConstraints=critical,CA:TRUE\n")
    key = ["-newkey", "rsa:2048", "-nodes"]
    authority = [*key, "-keyout", str(root / "ca.key"), "-out", str(root / "ca.pem")]
    run_tool(["openssl", "req", "-x509", *authority, "-days", "2", "-subj", "/CN=test authority"])
    request = [*key, "-keyout", str(root / "key.pem"), "-out", str(root / "request.pem")]
    run_tool(["openssl", "req", *request, "-subj", "/CN=dump-ingest"])
    signed = ["-in", str(root / "request.pem"), "-out", str(root / "cert.pem"), "-days", "2"]
    authority = ["-CA", str(root / "ca.pem"), "-CAkey", str(root / "ca.key"), "-CAcreateserial"]
    run_tool(["openssl", "x509", "-req", *signed, *authority])


@pytest.fixture
def site(
    make_network: Callable[[list[str]], Network],
    s3_bucket: S3Bucket,
    s3_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Site]:
    """All processes, running."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    gateway = urlsplit(s3_environment["AWS_ENDPOINT_URL"]).port
    assert gateway is not None
    network = make_network(["head", *HOSTS])
    with ExitStack() as stack:
        forwarder = stack.enter_context(Forwarder(network.store_address, gateway))
        endpoint = f"http://{network.store_address}:{forwarder.port}"
        yield stack.enter_context(Site(network, f"{s3_bucket.url}/run.zarr", endpoint, tmp_path))


def write(site: Site, rank: int, step: int) -> int:
    """Dump one step on the host of a rank, of random numbers that hardly compress; return its bytes."""
    dump = MadeDump(site.dump(HOSTS[rank]))
    random = np.random.default_rng([rank, step])
    for number in range(_FILES):
        values = random.standard_normal(_ELEMENTS, np.float32)
        dump.add(values, tensor_name(f"MatMul.net_MatMul-op{number}"), step=step, rank=rank)
    return _FILES * _ELEMENTS * 4


def until(ready: Callable[[], bool], site: Site, *, timeout_s: float) -> None:
    """Wait for something; say what the processes said where it does not come."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, site.said()
        time.sleep(0.5)


def test_files_stay_on_their_host_a_cut_link_loses_nothing_and_strangers_are_refused(
    site: Site, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    def committed(*keys: tuple[int, int]) -> Callable[[], bool]:
        names = [f"{s3_bucket.url}/run.zarr/rank_{rank}/step_{step}/zarr.json" for rank, step in keys]
        files = fsspec.filesystem("s3", **s3_bucket.storage_options)
        return lambda: all(files.exists(name) for name in names)

    nbytes = sum(write(site, rank, step) for rank in (0, 1) for step in (0, 1))
    until(committed((0, 0), (0, 1), (1, 0), (1, 1)), site, timeout_s=90)

    for host in HOSTS:
        assert site.network.nbytes(host) < nbytes / 2 / 10, site.said()

    write(site, 1, 2)
    site.network.cut("node-b")
    write(site, 0, 2)
    cut_at = time.monotonic()
    until(committed((0, 2)), site, timeout_s=_CUT_S)  # the other host does not care
    refused = site.run_on("node-a", "dump-ingest", "doctor", "--scheduler", site.scheduler, env=site.plain)
    assert refused.returncode != 0
    assert "TLS" in refused.stdout + refused.stderr or "tls" in refused.stdout + refused.stderr
    trusted = site.run_on("node-a", "dump-ingest", "doctor", "--scheduler", site.scheduler, env=site.with_tls)
    assert trusted.returncode == 0, trusted.stdout + trusted.stderr
    time.sleep(max(_CUT_S - (time.monotonic() - cut_at), 0))
    site.network.mend("node-b")
    write(site, 1, 3)
    until(committed((1, 2), (1, 3)), site, timeout_s=120)

    for host in HOSTS:
        shutil.copytree(site.dump(host), tmp_path / "all", dirs_exist_ok=True)
    found = check(download(s3_bucket, tmp_path / "store") / "run.zarr", tmp_path / "all")
    assert {(leaf.rank, leaf.step) for leaf in found} == {(0, 0), (0, 1), (0, 2), *((1, s) for s in range(4))}
