"""What the watcher and the consolidator tell systemd, as `Type=notify` and `WatchdogSec=` ask for it."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import start
from tests.dumps import DumpLibrary

#: The interval of the watchdog, in microseconds. A quarter of it passes between two messages.
INTERVAL_US = 800_000


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def falls_silent(systemd: socket.socket) -> bool:
    """Return whether nothing comes any more within an interval, after what was on its way."""
    for _ in range(10):
        try:
            systemd.recv(100)
        except TimeoutError:
            return True
    return False


@pytest.mark.parametrize("command", ["watch", "consolidate"])
def test_a_service_is_ready_and_beats_until_it_hangs(
    command: str, systemd: socket.socket, dumps: DumpLibrary, tmp_path: Path
) -> None:
    words: dict[str, tuple[object, ...]] = {
        "watch": ("watch", dumps["lenet-1rank"], "--store", tmp_path / "run.zarr", "--workers", "1"),
        "consolidate": ("consolidate", tmp_path / "run.zarr", "--follow", "--poll", "0.1"),
    }
    asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(INTERVAL_US)}
    with start(*words[command], env=asked) as service:
        assert systemd.recv(100) == b"READY=1"
        for _ in range(3):
            assert systemd.recv(100) == b"WATCHDOG=1"
        os.kill(service.process.pid, signal.SIGSTOP)
        systemd.settimeout(INTERVAL_US / 1e6)
        assert falls_silent(systemd)
        os.kill(service.process.pid, signal.SIGCONT)
        systemd.settimeout(60)
        assert systemd.recv(100) == b"WATCHDOG=1"
