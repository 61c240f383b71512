"""What systemd is told of a process."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.host.heartbeat import Heartbeat, answer_watchdog


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(0.0)
        yield listening


def told(systemd: socket.socket) -> list[bytes]:
    """Return the messages since the last call."""
    messages = []
    while True:
        try:
            messages.append(systemd.recv(100))
        except BlockingIOError:
            return messages


def test_systemd_hears_that_the_service_is_ready_and_beats_some_times_in_an_interval(
    systemd: socket.socket, tmp_path: Path
) -> None:
    heart = Heartbeat({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
    heart.tell_ready()
    assert told(systemd)[:1] == [b"READY=1"]
    started, beats = time.monotonic(), 0
    while time.monotonic() < started + 0.5:
        heart.beat()
        beats += 1
    messages = told(systemd)
    assert set(messages) == {b"WATCHDOG=1"}
    assert len(messages) < beats / 10


def test_the_abstract_namespace_and_a_manager_that_is_gone(tmp_path: Path) -> None:
    name = f"dump-ingest-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        Heartbeat({"NOTIFY_SOCKET": f"@{name}"}).tell_ready()
        assert listening.recv(100) == b"READY=1"
    Heartbeat({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell_ready()


def waiting(systemd: socket.socket) -> Iterator[bytes]:
    """Yield the messages that have come."""
    with suppress(BlockingIOError):
        while True:
            yield systemd.recv(100)


@pytest.mark.parametrize("asked", [{"WATCHDOG_USEC": "40000"}, {}], ids=["asked", "not-asked"])
def test_a_manager_hears_what_it_asked_for(asked: dict[str, str], tmp_path: Path) -> None:
    server: Any = SimpleNamespace(periodic_callbacks={})
    heard: list[bytes] = []

    async def serve() -> None:
        answer_watchdog(server, {"NOTIFY_SOCKET": str(tmp_path / "notify"), **asked})
        for callback in server.periodic_callbacks.values():
            callback.start()
        while asked and heard[-1:] != [b"WATCHDOG=1"]:
            await asyncio.sleep(0.02)
            heard.extend(waiting(manager))

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        asyncio.run(asyncio.wait_for(serve(), 30))
        heard.extend(waiting(manager))
    assert heard[0] == b"READY=1"
    assert (b"WATCHDOG=1" in heard) is bool(asked)
    assert len(server.periodic_callbacks) == len(asked)
