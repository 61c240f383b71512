"""Who asks is told that an event loop runs; nobody else pays for it."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.host.heartbeat import answer_watchdog


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
            heard.extend(waiting(systemd))

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        asyncio.run(asyncio.wait_for(serve(), 30))
        heard.extend(waiting(systemd))
    assert heard[0] == b"READY=1"
    assert (b"WATCHDOG=1" in heard) is bool(asked)
    assert len(server.periodic_callbacks) == len(asked)
