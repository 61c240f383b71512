"""Where the server listens, and below which path."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ingest.page.library import Library
from ingest.page.server import Listen, PageServer, PageSettings, base_path
from tests.page_server import RunningPage
from workers import events
from workers.errors import UsageError


@pytest.mark.parametrize("words", ["/a b", "a?b", "//a//b", "/\u00e9", "/a/../<b>"])
def test_what_is_not_a_path_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="is not a base path"):
        base_path(words)


# tornado leaves the socket that it could not bind to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PageServer(Library(str(tmp_path), refresh_s=60), PageSettings(Listen("127.0.0.1", port)))
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}"):
            server.bind()


def test_the_server_ends_and_leaves_nothing_behind(nan_log: Path) -> None:
    before = list(events._observers)
    with RunningPage(nan_log, base="/dumps") as running:
        assert running.url.endswith("/dumps")
        assert running.get("/dumps/healthz").status == running.get("/healthz").status == 200
    assert list(events._observers) == before
    with pytest.raises(OSError, match="refused"):
        running.get("/healthz")
