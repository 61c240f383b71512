"""The health check of containers, against processes that answer or do not."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from deploy.container import health
from deploy.container.health import problem_of

LOOKED = "dump_ingest_watcher_last_look_timestamp_seconds"


class Answers(HTTPServer):
    """Answers every request with one text."""

    body = ""

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer."""
        assert isinstance(self.server, Answers)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers(("127.0.0.1", 0), _Handler) as answers:
        thread = threading.Thread(target=answers.serve_forever)
        thread.start()
        yield answers
        answers.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("METRICS", "CONSOLIDATOR_METRICS"):
        monkeypatch.setenv(f"DUMP_INGEST_{name}", "")


@pytest.mark.parametrize(
    ("age_s", "problem"), [(5, ""), (health.STALE_S + 60, "has not looked at the dump for 18")]
)
def test_a_watcher_must_have_looked_lately(age_s: float, problem: str, server: Answers) -> None:
    server.body = f"{LOOKED} {time.time() - age_s}\n"
    assert problem_of(["dump-ingest", "watch", "/dump", "--metrics", server.address])[:33] == problem


def test_a_watcher_that_waits_for_a_dump_is_well(server: Answers) -> None:
    server.body = f"{LOOKED} 0.0\n"
    assert problem_of(["/usr/bin/dump-ingest", "watch", "/dump", f"--metrics={server.address}"]) == ""


def test_addresses_come_from_the_settings_too(server: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_INGEST_METRICS", f"0.0.0.0:{server.server_port}")
    server.body = f"{LOOKED} 1.0\n"
    assert "has not looked" in problem_of(["python3", "/opt/bin/dump-ingest", "watch", "/dump"])


@pytest.mark.parametrize(
    "words",
    [
        ("dask", "scheduler", "--dashboard-address", "ADDRESS"),
        ("dask", "worker", "tcp://a:1", "--dashboard-address=ADDRESS"),
        ("dump-ingest", "consolidate", "--follow", "--metrics", "ADDRESS"),
    ],
)
def test_others_must_answer(words: tuple[str, ...], server: Answers) -> None:
    assert problem_of([word.replace("ADDRESS", server.address) for word in words]) == ""
    with pytest.raises(OSError, match="refused"):
        problem_of([word.replace("ADDRESS", "127.0.0.1:1") for word in words])


@pytest.mark.parametrize(
    "words", [("dump-ingest", "watch", "/dump"), ("dump-ingest", "gc"), ("sleep", "1"), ("python3",)]
)
def test_what_serves_nothing_only_has_to_run(words: tuple[str, ...]) -> None:
    assert problem_of(words) == ""


def test_it_reads_the_command_of_a_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        done = subprocess.run([sys.executable, health.__file__, str(process.pid)], check=False)
        process.kill()
    assert done.returncode == 0
