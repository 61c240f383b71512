"""Commands on real clusters: their workers, metrics and hosts."""

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest
from distributed import Client

from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from tests import checker
from tests.checker import check, download
from tests.cli import run, start
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.network import Forwarder, Network
from tests.servers.process import ServerGroup, free_port, http_get, run_tool, scrape
from tests.servers.prometheus import Prometheus, StartPrometheus, promtool_check_metrics
from tests.stores import SMALL_GRID, DumpLibrary, MadeDump, ingest_directly, tensor_name

# `compare` between two stores on object storage, on a cluster.


@pytest.fixture
def client(
    s3_cluster: DaskCluster, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client of workers that reach the object storage, as this process does."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    with Client(s3_cluster.address, set_as_default=False) as connected:
        yield connected


@pytest.mark.dask
@pytest.mark.s3
def test_two_stores_on_object_storage_are_compared_on_a_cluster(
    s3_bucket: S3Bucket, client: Client, tmp_path: Path
) -> None:
    """Workers read both sides themselves, and say what threads say of the dumps that these are of."""
    values = np.linspace(1, 2, 300, dtype=np.float32)
    sides = []
    for number in range(2):
        dump = MadeDump(tmp_path / f"dump{number}")
        for place in range(6):
            changed = values + np.float32(number * (place % 2))
            dump.add(changed, tensor_name(f"Add.net_Add-op{place}", time=1_795_220_037_870_000 + place))
        sides.append((dump.root, f"{s3_bucket.url}/run{number}.zarr"))
        ingest_directly(*sides[-1], SMALL_GRID)
    (dump_a, store_a), (dump_b, store_b) = sides

    comparison = compare(f"{store_a}@0,0", store_b, client=client)

    assert comparison.counts == {Verdict.EQUAL: 3, Verdict.DIFFERENT: 3}
    of_dumps = compare(dump_a, dump_b)
    assert [tensor.to_dict() for tensor in comparison.tensors] == [
        tensor.to_dict() for tensor in of_dumps.tensors
    ]
    assert [tensor.metrics and tensor.metrics.max_abs for tensor in comparison.tensors] == [
        pytest.approx(1)
    ] * 3


# `doctor` with a real cluster, a real bucket, and files of another user.


@pytest.mark.dask
def test_what_works_is_reported_and_nothing_is_left_behind(
    dumps: DumpLibrary, cluster: DaskCluster, tmp_path: Path
) -> None:
    """Dump, store and cluster are each tried, and the store is left as it was."""
    dump, store = dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr"
    words = ("doctor", dump, "--store", store, "--scheduler", cluster.address)
    checks = run(*words, "--json").json
    assert [row["check"] for row in checks] == [
        "software",
        "identity",
        "settings",
        "dump",
        "dump configuration",
        "disk",
        "store",
        "clock",
        "dump in store",
        "scheduler",
    ]
    assert all(row["ok"] for row in checks)
    details = {row["check"]: row["detail"] for row in checks}
    assert "2 ranks, 3 steps" in details["dump"]
    assert "no store there yet" in details["store"]
    assert "2 workers" in details["scheduler"]
    assert checker.objects(store) == {}


@pytest.mark.s3
def test_a_bucket_is_written_to(s3_bucket: S3Bucket, s3_environment: dict[str, str]) -> None:
    """With right and with wrong credentials; nothing stays behind."""
    words = ("doctor", "--store", s3_bucket.url, "--json")
    assert all(row["ok"] for row in run(*words, env=s3_environment).json)
    wrong = {**s3_environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    [failed] = [row for row in run(*words, env=wrong, code=1).json if not row["ok"]]
    assert failed["check"] == "store"
    assert "AWS_SECRET_ACCESS_KEY" in failed["hint"]
    assert checker.objects(s3_bucket) == {}


# What Prometheus sees of a watcher and of the Dask workers.


def scraped(port: int) -> str:
    """Return our own metrics as a scrape shows them."""
    status, body = http_get(port, "/metrics")
    assert status == http.client.OK
    lines = body.decode().splitlines(keepends=True)
    return "".join(line for line in lines if "dump_ingest_" in line)


def converted(cluster: DaskCluster) -> float:
    """Return how many files the workers have converted so far."""
    text = "".join(scraped(port) for port in cluster.metrics_ports)
    lines = [line for line in text.splitlines() if line.startswith("dump_ingest_convert_files_total")]
    return sum(float(line.split()[1]) for line in lines)


def by_rank(server: Prometheus, expression: str) -> dict[str, float]:
    return {sample.labels["rank"]: sample.value for sample in server.wait_for(expression)}


@pytest.mark.dask
@pytest.mark.prometheus
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
        promtool_check_metrics(scraped(port))
        assert watch.terminate(timeout_s=60) == 0


@pytest.mark.dask
@pytest.mark.prometheus
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
        if text := scraped(port):
            promtool_check_metrics(text)


# Several hosts, each with a dump on a disk of its own: tasks stay where the files are.


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


@pytest.mark.dask
@pytest.mark.s3
@pytest.mark.campaign
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


# The Slurm scripts, run from beginning to end with a `srun` that has this machine for its only node.


SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
#: The one of Slurm starts a command on each node, and passes signals on to it.
SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
echo "$@" >>"$SRUN_LOG"
SLURM_PROCID=0 exec "$@"
"""
SCONTROL = """\
#!/bin/bash
[[ "$1 $2" == "show hostnames" ]] && hostname
"""
#: A training job: keeps what others can see of the ingestion while it runs, and leaves a dump.
TRAIN = """\
set -e
until [[ -s $INGEST_TARGETS/dump-ingest-17.json ]]; do sleep 0.1; done
cp "$INGEST_TARGETS/dump-ingest-17.json" "$KEEP/targets.json"
cp dump-ingest-17.json "$KEEP/scheduler.json"
stat -c %a dump-ingest-17.tls >"$KEEP/modes"
ls dump-ingest-17.tls >"$KEEP/certificates"
for port in "$@"; do
    until python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/metrics')" 2>/dev/null; do
        sleep 0.2
    done
done
cp -r "$RECORDED" "$DUMP"
"""


class Scraper:
    """Asks for metrics all the time, as Prometheus does, while the `with` block runs."""

    def __init__(self, ports: Collection[int]) -> None:
        self.last = dict.fromkeys(ports, "")
        """The last answer of each port."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.5):
            for port in self.last:
                with suppress(OSError):
                    self.last[port] = scrape(port)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on one node."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "scontrol").write_text(SCONTROL)
    for program in programs.iterdir():
        program.chmod(0o755)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DUMP_INGEST_", "AWS_", "DASK_"))}
    return {
        **inherited,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SRUN_LOG": str(tmp_path / "srun.log"),
        "USER": "trainer",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "INGEST_PREFIX": str(Path(sys.executable).parent.parent),
        "INGEST_SLURM": str(SCRIPTS),
        "INGEST_CPUS": "1",
        "INGEST_PORT": str(free_port()),
        "DUMP_INGEST_METRICS": f"127.0.0.1:{free_port()}",
        "DUMP_INGEST_CONSOLIDATOR_METRICS": f"127.0.0.1:{free_port()}",
        "DUMP_INGEST_SETTLE_S": "0",
        "DUMP_INGEST_POLL_S": "0.2",
        "INGEST_INTERFACE": "lo",
        "STORE": str(tmp_path / "run.zarr"),
    }


@pytest.mark.dask
@pytest.mark.slow
def test_a_job_leaves_its_whole_dump_in_the_store(
    job: dict[str, str], dumps: DumpLibrary, tmp_path: Path
) -> None:
    """Its last step is written just before it ends, and nothing runs on afterwards."""
    dump, kept, targets, scratch = (tmp_path / name for name in ("dump", "kept", "targets", "scratch"))
    for directory in (kept, targets, scratch):
        directory.mkdir()
    (tmp_path / "train.sh").write_text(TRAIN)
    first = int(job["INGEST_PORT"])
    ports = [
        first + 1,
        first + 4,
        *(int(job[f"DUMP_INGEST_{name}METRICS"][10:]) for name in ("", "CONSOLIDATOR_")),
    ]
    with Scraper(ports[2:]) as scraper:
        done = subprocess.run(
            [SCRIPTS / "train.sbatch"],
            env={
                **job,
                "DUMP": str(dump),
                "TRAIN": shlex.join(["bash", str(tmp_path / "train.sh"), *map(str, ports)]),
                "RECORDED": str(dumps["nan-log-2rank"] / "dump"),
                "KEEP": str(kept),
                "INGEST_TARGETS": str(targets),
                "INGEST_SCRATCH": str(scratch),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    store = tmp_path / "run.zarr"
    assert len(list(store.glob("rank_[01]/step_[123]/zarr.json"))) == 6
    assert (store / "consolidated").is_dir()
    # Nothing is left behind: no key, no address of a scheduler, and no targets that would be missed.
    assert list(tmp_path.glob("dump-ingest-17*")) == []
    assert [*targets.iterdir(), *scratch.iterdir()] == []
    assert json.loads((kept / "scheduler.json").read_text())["address"] == f"tls://127.0.0.1:{first}"
    assert (kept / "modes").read_text().split() == ["700"]
    assert (kept / "certificates").read_text().split() == ["ca.pem", "tls.key", "tls.pem"]
    host = socket.gethostname()
    assert {
        group["labels"]["job"]: group["targets"] for group in json.loads((kept / "targets.json").read_text())
    } == dict(
        zip(
            (f"dump-ingest-{role}" for role in ("scheduler", "worker", "watcher", "consolidator")),
            ([f"{host}:{port}"] for port in ports),
            strict=True,
        )
    )
    started = (tmp_path / "srun.log").read_text()
    assert [
        what for what in ("scheduler", "worker", "watch", "consolidate", "ingest") if what not in started
    ] == []
    assert "Traceback" not in done.stderr
    assert "is not a setting" not in done.stderr
    # Processes end when their last state was scraped: nothing waits any more, and what was found is told.
    watcher, consolidator = (scraper.last[port] for port in ports[2:])
    pending = re.findall(r"^dump_ingest_watcher_pending_steps\{.*\} (.*)$", watcher, re.MULTILINE)
    assert set(pending) == {"0.0"}
    # Steps 2 and 3 have NaN, and may be committed in either order.
    assert re.search(r'last_finding_step\{rank="1",rule="nan",severity="critical"\} [23]\.0', watcher)
    for rank in (0, 1):
        assert f'dump_ingest_consolidator_committed_step{{rank="{rank}"}} 3.0' in consolidator
    assert "dump_ingest_consolidator_newest_step 3.0" in consolidator


def test_the_epilog_takes_the_targets_of_one_job_away(tmp_path: Path) -> None:
    for number in (17, 18):
        (tmp_path / f"dump-ingest-{number}.json").touch()
    subprocess.run(
        [SCRIPTS / "epilog.sh"],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17", "INGEST_TARGETS": str(tmp_path)},
        check=True,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["dump-ingest-18.json"]
