"""Requests, faults of servers, silence, and who may reach what; and how a service ends."""

import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil  # type: ignore[import-untyped]  # it has none
import pytest
import xarray as xr
from aiobotocore.httpsession import AIOHTTPSession
from distributed import Client

from ingest.api import DumpStore
from ingest.doctor import checks
from ingest.doctor.checks import run_checks
from ingest.reader.catalog import open_catalog
from ingest.service.live_watcher import fetch_steps
from ingest.settings import load
from tests.cli import PROGRAM, Running, environment, own_workers, run, start
from tests.faults.proxy import NORMAL, NetworkCondition, Proxy
from tests.object_store_contract import ObjectStoreContract
from tests.servers.ceph import PROGRAMS, CephS3, S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.process import ServerGroup, free_port, http_get, run_tool
from tests.stores import DumpLibrary, MadeDump, ingest_and_open, ingest_directly, tensor_name
from workers.model import MIB
from workers.store.backends.remote import S3Objects
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore, Uploads
from workers.store.opening import connect, resolve

# How many requests a real S3 store gets, and what faults of it do no harm.


class Requests:
    """The HTTP requests of this process to S3, those that are sent again included."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        send = AIOHTTPSession.send

        async def count(session: AIOHTTPSession, request: object) -> object:
            self.sent.append(request.method)  # type: ignore[attr-defined]
            return await send(session, request)

        monkeypatch.setattr(AIOHTTPSession, "send", count)

    def of(self, question: Callable[[], object]) -> Counter[str]:
        """Return how many requests a question takes, by their methods."""
        self.sent.clear()
        question()
        return Counter(self.sent)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


@pytest.fixture
def url(s3_bucket: S3Bucket, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a store may be made, with credentials in the environment."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return s3_bucket.url


@pytest.fixture
def objects(url: str) -> ObjectStore:
    return connect(resolve(url))


@pytest.fixture
def https_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A bucket of a gateway that speaks HTTPS."""
    if any(shutil.which(program) is None for program in (*PROGRAMS, "openssl")):
        pytest.skip("not installed: Ceph or openssl")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", free_port()
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    run_tool(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files])
    (tmp_path / "both.pem").write_text(key.read_text() + certificate.read_text())

    class HttpsGateway(CephS3):
        def _write_conf(self, root: Path) -> None:
            super()._write_conf(root)
            conf = root / "ceph.conf"
            https = f"ssl_endpoint=127.0.0.1:{port} ssl_certificate={tmp_path}/both.pem"
            conf.write_text(conf.read_text().replace("tcp_nodelay=1", f"tcp_nodelay=1 {https}"))

    with HttpsGateway() as ceph:
        bucket = ceph.make_bucket("over-https")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ceph.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ceph.secret_key)
        client = {
            "endpoint_url": f"https://127.0.0.1:{port}",
            "region_name": "default",
            "verify": str(certificate),
        }
        yield connect(resolve(bucket.url, {"client_kwargs": client}))


@pytest.mark.s3
def test_https_works_without_further_settings(https_objects: ObjectStore) -> None:
    """By default, botocore sends checksums that Ceph refuses over HTTPS."""
    contents = {"small": b"small", "large": bytes(70 * MIB)}
    for key, data in contents.items():
        https_objects.put(key, data)
    assert https_objects.get_many(list(contents)) == contents


@pytest.mark.s3
class TestContract(ObjectStoreContract):
    """What every backend does, S3 on a real gateway does, too."""

    @pytest.fixture
    def objects(self, url: str) -> ObjectStore:
        return S3Objects(StoreAddress(f"{url}/below"))


@pytest.mark.s3
def test_an_object_is_one_request(objects: ObjectStore, requests: Requests) -> None:
    assert requests.of(lambda: objects.put("a", b"0123456789")) == {"PUT": 1}
    assert requests.of(lambda: objects.put_many({"b": b"1", "c": b"2"})) == {"PUT": 2}
    assert requests.of(lambda: objects.get("a")) == {"GET": 1}
    assert requests.of(lambda: objects.get("gone")) == {"GET": 1}
    assert requests.of(lambda: objects.get_many(["a", "b", "gone"])) == {"GET": 3}
    assert requests.of(lambda: objects.get_range("a", -4)) == {"GET": 1}
    assert requests.of(lambda: objects.get_range("a", 1, 4)) == {"GET": 1}
    assert requests.of(lambda: objects.children("")) == {"GET": 1}


@pytest.mark.s3
def test_only_a_large_object_goes_in_parts(objects: ObjectStore, requests: Requests) -> None:
    small, large = bytes(40 * MIB), bytes(70 * MIB)
    assert requests.of(lambda: objects.put("small", small)) == {"PUT": 1}
    # Begun and ended by a POST each.
    assert requests.of(lambda: objects.put("large", large)) == {"POST": 2, "PUT": 3}
    assert objects.sizes() == {"small": len(small), "large": len(large)}


@pytest.fixture
def filled(url: str, tmp_path: Path) -> DumpStore:
    """Steps of three ranks, of tensors of 4 KiB."""
    dump = MadeDump(tmp_path / "dump")
    for rank in range(3):
        for step in range(4):
            for slot in range(20):
                values = np.random.default_rng([rank, step, slot]).normal(size=1024).astype(np.float32)
                dump.add(values, tensor_name(slot=slot), step=step, rank=rank)
    return ingest_and_open(dump.root, url)


@pytest.mark.s3
def test_what_is_sent_survives_a_gateway_that_comes_back(url: str, ceph: CephS3, requests: Requests) -> None:
    """The clients send again by themselves, unless told otherwise."""
    objects = connect(resolve(url, {"config_kwargs": {"retries": {"max_attempts": 6}}}))
    contents = {f"shard/{number}": np.random.default_rng(number).bytes(8 * MIB) for number in range(6)}

    def upload() -> None:
        with Uploads(objects) as uploads:
            for number, (key, data) in enumerate(contents.items()):
                uploads.put(key, data)
                if number == 2:
                    ceph.kill_gateway()
                    restart.start()

    restart = threading.Timer(0.3, ceph.start_gateway)
    try:
        sent = requests.of(upload)
    finally:
        restart.join()
    assert sent["PUT"] > len(contents)
    assert all(objects.get(key) == data for key, data in contents.items())


@pytest.mark.s3
@pytest.mark.dask
def test_workers_read_the_parts_of_views(filled: DumpStore, s3_cluster: DaskCluster) -> None:
    """What arrives at a worker finds the store with the credentials that are there."""
    expected = np.random.default_rng([0, 1, 7]).normal(size=1024).astype(np.float32)
    with Client(s3_cluster.address):
        dataset = xr.open_dataset(filled.url, engine="dump-ingest", rank=0, step=1, chunks={})
        np.testing.assert_array_equal(dataset["MatMul.net_MatMul-op0.output.7"].values, expected)
        operator = xr.open_zarr(filled.as_zarr(), group="rank_0/step_1/MatMul.net_MatMul-op0")
        np.testing.assert_array_equal(operator["output.7"].values, expected)


# A host with several users: what another user can reach of a running `watch`, and plant for it.


ROOT = Path(__file__).parents[2]
#: Modules that the watcher or a worker imports after its cluster was started.
LATE_MODULES = ("numcodecs", "s3fs", "zarr", "numba", "xarray", "google_crc32c")


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports of a process and of all its children."""
    watcher = psutil.Process(pid)
    return sorted(
        connection.laddr.port
        for process in [watcher, *watcher.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    )


def intrude(uid: int, ports: list[int]) -> str:
    """Return what another user is answered by any of the ports."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.intruder", *map(str, [uid, *ports])],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    return done.stdout


def wait_for_commit(watching: Running) -> None:
    watching.wait_until(lambda: watching.events("step_committed"), timeout_s=60)


@pytest.mark.dask
@pytest.mark.timeout(180)
def test_workers_of_watch_open_no_port(dumps: DumpLibrary, tmp_path: Path) -> None:
    """Whoever is let in by Dask runs code as the user of the watcher."""
    words = ("watch", dumps["nan-log-2rank"] / "dump", "--store", tmp_path / "run.zarr")
    with start(*words, env={"DUMP_INGEST_WORKERS": "2"}) as watching:
        wait_for_commit(watching)
        assert listening_ports(watching.pid) == []
        assert watching.terminate() == 0


@pytest.mark.dask
@pytest.mark.timeout(180)
def test_the_intruder_knows_how_to_get_in(cluster_port: int, other_user: int) -> None:
    """An open scheduler lets it in: so workers of a command are better off without one."""
    assert f"runs code as uid {os.getuid()}" in intrude(other_user, [cluster_port])


@pytest.mark.dask
@pytest.mark.timeout(180)
def test_modules_planted_among_temporary_files_are_not_imported(
    dumps: DumpLibrary, tmp_path: Path, other_user: int
) -> None:
    """Dask looks for modules in its directory for temporary files, whoever has created it."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    marker = tmp_path / "planted-code-ran"
    for name in ("dask-scratch-space", f"dump-ingest-{os.getuid()}", f"dask-scratch-space-{os.getuid()}"):
        planted = shared / name
        planted.mkdir()
        for module in LATE_MODULES:
            (planted / f"{module}.py").write_text(f"open({str(marker)!r}, 'a').write({module!r})\n")
        planted.chmod(0o777)
        os.chown(planted, other_user, other_user)
    # Also not from the working directory.
    run(
        *("ingest", dumps["nan-log-2rank"] / "dump", "--store", tmp_path / "run.zarr"),
        env={"TMPDIR": str(shared)},
        cwd=shared / "dask-scratch-space",
    )
    assert not marker.exists(), marker.read_text()


@pytest.mark.dask
@pytest.mark.timeout(180)
def test_others_can_neither_enter_nor_read_what_is_among_temporary_files(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    words = ("watch", dumps["nan-log-2rank"] / "dump", "--store", tmp_path / "run.zarr")
    open_to_others: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.001):
            for entry in list(shared.iterdir()):
                try:
                    mode = entry.stat().st_mode
                except FileNotFoundError:
                    continue
                if mode & 0o077:
                    open_to_others.add(entry.name)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with start(*words, env={"TMPDIR": str(shared)}) as watching:
            wait_for_commit(watching)
            assert watching.terminate() == 0
    finally:
        ended.set()
        looking.join()
    assert open_to_others == set()


# A store that accepts requests and does not answer; and Ctrl-C, whatever a command is at.


# Run the command on a terminal of its own, and press Ctrl-C.


CTRL_C = b"\x03"


@dataclass(frozen=True, slots=True)
class Pressed:
    """How a command ended on which Ctrl-C was pressed."""

    code: int
    printed: str
    """All that it printed, also before."""
    seconds: float
    """From Ctrl-C to the end."""
    pid: int


def press_ctrl_c(
    *args: object,
    when: Callable[[int, str], bool],
    env: Mapping[str, str] | None = None,
    presses: int = 1,
    timeout_s: float = 60,
) -> Pressed:
    """Run the command, press Ctrl-C as soon as `when` says so, and wait for the end.

    Args:
        args: of the command.
        when: called with the process id and what was printed so far.
        env: added to the environment.
        presses: how often Ctrl-C is pressed, with half a second in between.
        timeout_s: how long to wait for `when`, and then for the end.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            # In the background, tests ignore Ctrl-C, and so would the command.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(PROGRAM, [PROGRAM, *map(str, args)], environment(env))  # noqa: S606 (on its own terminal)
        finally:
            os._exit(127)
    printed, pressed_at, left = "", 0.0, presses
    until = time.monotonic() + timeout_s
    try:
        while time.monotonic() < until:
            if select.select([terminal], [], [], 0.05)[0]:
                piece = b""
                with suppress(OSError):  # it has ended
                    piece = os.read(terminal, 65536)
                if not piece:
                    break
                printed += piece.decode(errors="replace")
            if left and (when(pid, printed) if left == presses else time.monotonic() - pressed_at > 0.5):
                os.write(terminal, CTRL_C)
                pressed_at = time.monotonic()
                until, left = pressed_at + timeout_s, left - 1
        seconds = time.monotonic() - pressed_at
        assert pressed_at, f"was not ready for Ctrl-C:\n{printed}"
        with suppress(ProcessLookupError):
            os.kill(pid, 0 if time.monotonic() < until else signal.SIGKILL)
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    return Pressed(os.waitstatus_to_exitcode(status), printed, seconds, pid)


@pytest.fixture
def black_hole() -> Iterator[dict[str, str]]:
    """The environment for a store that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "default",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
        }
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


@pytest.fixture
def made(tmp_path: Path) -> MadeDump:
    made = MadeDump(tmp_path / "dump")
    _add(made, 0)
    return made


def _add(made: MadeDump, step: int, nbytes: int = 4096) -> None:
    values = np.random.default_rng(step).normal(size=nbytes // 4).astype(np.float32)
    made.add(values, tensor_name(), step=step)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", ["ingest", "find"])
def test_commands_give_up_on_a_store_that_does_not_answer(
    command: str, black_hole: dict[str, str], made: MadeDump
) -> None:
    env = {**black_hole, "DUMP_INGEST_STORE_TIMEOUT_S": "2"}
    store = "s3://bucket/run.zarr"
    args = [made.root, "--store", store] if command == "ingest" else [store]
    started = time.monotonic()
    done = run(command, *args, env=env, code=1)
    assert time.monotonic() - started < 60  # s3fs and botocore alone: 413 s
    assert "no answer for 2 s" in done.stderr
    assert "store_timeout_s" in done.stderr


@pytest.mark.timeout(240)
def test_watch_says_that_the_store_is_silent_goes_on_and_ends(
    ceph: CephS3, s3_bucket: S3Bucket, s3_environment: dict[str, str], made: MadeDump
) -> None:
    port, upstream = free_port(), urlsplit(ceph.endpoint_url).port
    assert upstream is not None

    def pending() -> float:
        lines = http_get(port, "/metrics")[1].decode().splitlines()
        name = "dump_ingest_watcher_pending_steps{"
        return sum(float(line.split()[1]) for line in lines if line.startswith(name))

    with Proxy(upstream, seed=0) as proxy:
        env = {
            **s3_environment,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "DUMP_INGEST_METRICS": f"127.0.0.1:{port}",
            "DUMP_INGEST_STORE_TIMEOUT_S": "5",
            "DUMP_INGEST_DRAIN_S": "20",
        }
        with start("watch", made.root, "--store", s3_bucket.url, env=env) as watch:
            watch.wait_until(lambda: len(watch.events("step_committed")) == 1, timeout_s=90)
            proxy.set(NetworkCondition("black hole"))
            _add(made, 1)
            watch.wait_until(lambda: "no answer for 5 s" in watch.said, timeout_s=60)
            for step in (2, 3):
                _add(made, step)
            watch.wait_until(lambda: pending() == 3, timeout_s=60)  # it still looks at the dump
            proxy.set(NORMAL)
            watch.wait_until(lambda: len(watch.events("step_committed")) == 4, timeout_s=90)
            # The next one stops in the middle of what it sends.
            proxy.set(NetworkCondition("stall", nbytes=100))
            _add(made, 4, 2**20)
            _add(made, 5)
            troubles = len(watch.events("trouble"))
            watch.wait_until(lambda: len(watch.events("trouble")) > troubles, timeout_s=60)
            started = time.monotonic()
            assert watch.terminate() == 4  # steps are left
            assert time.monotonic() - started < 40  # before: 1650 s, and not ended


@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", ["verify", "export"])
def test_ctrl_c_ends_a_command_that_waits_for_the_store(
    command: str, black_hole: dict[str, str], tmp_path: Path
) -> None:
    more = [str(tmp_path / "out")] if command == "export" else []
    begun = time.monotonic()
    pressed = press_ctrl_c(
        command,
        "s3://bucket/run.zarr",
        *more,
        env=black_hole,
        when=lambda _pid, _printed: time.monotonic() - begun > 4,
    )
    assert (pressed.code, "Traceback" in pressed.printed) == (130, False), pressed.printed
    assert pressed.printed.count("stopping") == 1
    assert pressed.seconds < 20


@pytest.mark.timeout(240)
def test_ctrl_c_ends_ingest_and_its_workers(tmp_path: Path) -> None:
    made = MadeDump(tmp_path / "dump")
    for step in range(12):
        _add(made, step, 8 * 2**20)
    store, workers = tmp_path / "run.zarr", set[int]()

    def is_busy(pid: int, _printed: str) -> bool:
        workers.update(own_workers(pid))
        return bool(list(store.glob("rank_0/step_*")))

    pressed = press_ctrl_c("ingest", made.root, "--store", store, when=is_busy, timeout_s=90)
    assert (pressed.code, "Traceback" in pressed.printed) == (130, False), pressed.printed
    assert "stopping: finishing " in pressed.printed
    assert "Ctrl-C again to give up" in pressed.printed
    assert pressed.seconds < 20  # before: 62 s
    _wait_for_end(workers)
    run("verify", store)
    run("ingest", made.root, "--store", store)


@pytest.mark.timeout(240)
def test_a_second_ctrl_c_ends_at_once(black_hole: dict[str, str], made: MadeDump) -> None:
    begun = time.monotonic()
    pressed = press_ctrl_c(
        "watch",
        made.root,
        "--store",
        "s3://bucket/run.zarr",
        env=black_hole,
        presses=2,
        when=lambda _pid, _printed: time.monotonic() - begun > 5,
    )
    assert (pressed.code, "Traceback" in pressed.printed) == (130, False), pressed.printed
    assert pressed.seconds < 5


@pytest.mark.timeout(240)
def test_workers_end_when_their_watcher_is_killed(tmp_path: Path, made: MadeDump) -> None:
    with start("watch", made.root, "--store", tmp_path / "run.zarr") as watch:
        watch.wait_until(lambda: watch.events("step_committed"), timeout_s=90)
        workers = own_workers(watch.pid)
        assert workers
        watch.kill()
    _wait_for_end(workers)


def _wait_for_end(pids: set[int] | list[int]) -> None:
    until = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):  # noqa: PTH110
        assert time.monotonic() < until, f"still there: {pids}"
        time.sleep(0.1)


# How a watcher ends: what it leaves behind is said, and can be taken first.


#: Nothing is complete while the job may still write.
PATIENT = {"DUMP_INGEST_QUIET_S": "3600", "DUMP_INGEST_SETTLE_S": "3600", "DUMP_INGEST_DRAIN_S": "120"}


@pytest.mark.dask
def test_a_backlog_is_told_with_its_size_and_an_exit_code(
    dump_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    dump = dump_copy("nan-log-2rank") / "dump"
    port = free_port()
    env = {**PATIENT, "DUMP_INGEST_METRICS": f"127.0.0.1:{port}"}
    with start("watch", dump, "--store", tmp_path / "run.zarr", env=env) as watcher:
        watcher.wait_until(lambda: watcher.events("watching"), timeout_s=60)
        watcher.wait_until(lambda: len(fetch_steps(f"http://127.0.0.1:{port}")) >= 6, timeout_s=60)
        assert watcher.terminate() == 4
    [stopped] = watcher.events("stopped")
    assert stopped["level"] == "warning"
    assert stopped["left_steps"] == 6
    assert stopped["left_bytes"] > 1000
    assert "dump-ingest ingest DUMP" in stopped["hint"]


@pytest.mark.dask
def test_everything_that_is_there_is_taken_first_if_asked_for(
    dump_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    dump, store = dump_copy("nan-log-2rank") / "dump", tmp_path / "run.zarr"
    with start("watch", dump, "--store", store, "--finish", env=PATIENT) as watcher:
        watcher.wait_until(lambda: watcher.events("watching"), timeout_s=60)
        assert watcher.terminate(timeout_s=150) == 0
    [stopped] = watcher.events("stopped")
    assert (stopped["level"], stopped["left_steps"]) == ("info", 0)
    assert sum(step.key.step is not None for step in open_catalog(str(store)).select()) == 6


# What every service tells systemd, as `Type=notify` and `WatchdogSec=` ask for it.


#: The interval of the watchdog, in microseconds. A quarter of it passes between two messages.
INTERVAL_US = 800_000


@contextmanager
def service_manager(path: Path) -> Iterator[socket.socket]:
    """Listen as systemd does for a service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.settimeout(60)
        yield listening


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with service_manager(tmp_path / "notify") as listening:
        yield listening


def falls_silent(systemd: socket.socket) -> bool:
    """Return whether nothing comes any more within an interval, after what was on its way."""
    systemd.settimeout(INTERVAL_US / 1e6)
    for _ in range(10):
        try:
            systemd.recv(100)
        except TimeoutError:
            return True
    return False


@pytest.mark.parametrize("command", ["watch", "consolidate", "serve"])
def test_a_service_is_ready_and_beats_until_it_hangs(
    command: str, systemd: socket.socket, dumps: DumpLibrary, tmp_path: Path
) -> None:
    words: dict[str, tuple[object, ...]] = {
        "watch": ("watch", dumps["lenet-1rank"], "--store", tmp_path / "run.zarr", "--workers", "1"),
        "consolidate": ("consolidate", tmp_path / "run.zarr", "--follow", "--poll", "0.1"),
        "serve": ("serve", tmp_path / "run.zarr", "--listen", "127.0.0.1:0"),
    }
    if command != "watch":
        ingest_directly(dumps["lenet-1rank"], tmp_path / "run.zarr")
    asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(INTERVAL_US)}
    with start(*words[command], env=asked) as service:
        assert systemd.recv(100) == b"READY=1"
        for _ in range(3):
            assert systemd.recv(100) == b"WATCHDOG=1"
        os.kill(service.process.pid, signal.SIGSTOP)
        assert falls_silent(systemd)
        os.kill(service.process.pid, signal.SIGCONT)
        systemd.settimeout(60)
        assert systemd.recv(100) == b"WATCHDOG=1"


def test_a_scheduler_and_a_worker_beat_until_their_event_loops_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a nanny, as the units run it: nobody else would end the process of a worker."""

    async def hang() -> None:
        time.sleep(600)  # noqa: ASYNC251  it is to block the loop

    dask, port = str(Path(sys.executable).with_name("dask")), free_port()
    roles = {
        "scheduler": ["--port", str(port), "--dashboard-address", ":0", "--preload", "workers.scheduler"],
        "worker": [
            *(f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny", "--memory-limit", "0"),
            *("--dashboard-address", ":0", "--local-directory", str(tmp_path), "--preload", "workers.plugin"),
        ],
    }
    with (
        service_manager(tmp_path / "scheduler") as of_scheduler,
        service_manager(tmp_path / "worker") as of_worker,
        ServerGroup("watchdog") as servers,
    ):
        for role, options in roles.items():
            asked = [f"NOTIFY_SOCKET={tmp_path / role}", f"WATCHDOG_USEC={INTERVAL_US}"]
            servers.start(role, ["env", *asked, dask, role, "--host", "127.0.0.1", *options])
        for listening in (of_scheduler, of_worker):
            assert listening.recv(100) == b"READY=1"
            assert listening.recv(100) == b"WATCHDOG=1"
        with Client(f"tcp://127.0.0.1:{port}", set_as_default=False) as client:
            client.run(hang, wait=False)
            assert falls_silent(of_worker)
            assert not falls_silent(of_scheduler)
        # It would wait for the worker to load the plugin until the scheduler gives the worker up.
        monkeypatch.setattr(checks, "_SILENT_S", INTERVAL_US / 1e6)
        *_, check = run_checks(load(scheduler=f"tcp://127.0.0.1:{port}"), None)
        assert (check.check, check.ok) == ("scheduler", False)
        assert "1 worker, 1 thread, not encrypted; it does not hear of tcp://127.0.0.1:" in check.detail
        assert "restart them" in check.hint
        os.kill(servers.pid("scheduler"), signal.SIGSTOP)
        assert falls_silent(of_scheduler)
        settings = load(scheduler=f"tcp://127.0.0.1:{port}", scheduler_timeout_s=0.5)
        *_, check = run_checks(settings, None)  # Dask alone would wait without end
        assert (check.check, check.ok) == ("scheduler", False)
        assert "restart it" in check.hint
