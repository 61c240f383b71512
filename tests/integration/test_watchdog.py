"""What every service tells systemd, as `Type=notify` and `WatchdogSec=` ask for it."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client

from ingest.doctor import checks
from ingest.doctor.checks import run_checks
from ingest.settings import load
from tests.cli import start
from tests.servers.process import ServerGroup, free_port
from tests.stores import DumpLibrary, ingest_directly

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
