"""The health check of containers, against processes that answer or do not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.container import health
from deploy.container.health import problem_of
from tests.servers.http import HttpServer


class Answers(HttpServer):
    """Answers every request with one status and text."""

    def __init__(self) -> None:
        super().__init__(lambda _: (self.status, self.body.encode()))
        self.status, self.body = 200, "live"


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers() as answers:
        yield answers


@pytest.fixture(autouse=True)
def _no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("METRICS", "CONSOLIDATOR_METRICS"):
        monkeypatch.setenv(f"DUMP_INGEST_{name}", "")


@pytest.mark.parametrize("command", [("watch", "/dump"), ("consolidate", "--follow")])
def test_a_process_that_serves_metrics_must_get_on_with_its_work(
    command: tuple[str, ...], server: Answers
) -> None:
    assert problem_of(["dump-ingest", *command, "--metrics", server.address]) == ""
    server.status, server.body = 503, "hangs: it has made no progress for 660 s\n"
    assert problem_of(["dump-ingest", *command, "--metrics", server.address]) == server.body.strip()


def test_addresses_come_from_the_settings_too(server: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_INGEST_METRICS", f"0.0.0.0:{server.port}")
    server.status, server.body = 503, "hangs"
    assert "hangs" in problem_of(["python3", "/opt/bin/dump-ingest", "watch", "/dump"])


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


@pytest.mark.parametrize("depth", [1, 2])
def test_below_an_init_it_is_the_process_with_a_role_that_counts(depth: int, tmp_path: Path) -> None:
    """As `docker run --init` has it; and a shell that starts a program without `exec`."""
    program = tmp_path / "dump-ingest"
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    program.chmod(0o755)
    command = f"{program} watch /dump & {sys.executable} -c 0; wait"
    for _ in range(depth - 1):
        command = f"sh -c '{command}' & wait"
    with subprocess.Popen(["sh", "-c", command], process_group=0) as init:
        for _ in range(200):
            words = health.command_of(init.pid)
            if "watch" in words:
                break
            time.sleep(0.05)
        os.killpg(init.pid, signal.SIGKILL)
    assert words == ["dump-ingest", "watch", "/dump"]
