"""A watcher or consolidator that runs is asked; for each broken state, one thing is to be done."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Gauge

from ingest.doctor import checks
from ingest.doctor.checks import Check, check_process, run_checks
from ingest.metrics import ConsolidatorMetrics, WatcherMetrics, serve, server
from ingest.settings import load
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.servers.process import free_port

STORE = "s3://dumps/run.zarr"
NOW = 1_000_000.0


class Process:
    """What a process serves, in this one: its series can be set."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.unready = ""
        self.port = free_port()
        self._stop: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def watch(self) -> WatcherMetrics:
        return WatcherMetrics(self.registry, lambda: NOW, store=STORE)

    def consolidate(self) -> ConsolidatorMetrics:
        return ConsolidatorMetrics(self.registry, lambda: NOW, store=STORE)

    def serve(self, started: float = NOW - 3600) -> None:
        self._stop = serve(self.registry, f"127.0.0.1:{self.port}", unready=lambda: self.unready)
        for collector in list(self.registry._collector_to_names):
            if "process_start_time_seconds" in self.registry._collector_to_names[collector]:
                self.registry.unregister(collector)
        Gauge("process_start_time_seconds", "Start.", registry=self.registry).set(started)

    def set(self, name: str, value: float, **labels: str) -> None:
        gauge = self.registry._names_to_collectors[f"dump_ingest_{name}"]
        assert isinstance(gauge, Gauge)
        (gauge.labels(**labels) if labels else gauge).set(value)

    def close(self) -> None:
        self._stop()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(server, "last_beat", lambda: NOW)
    made = Process()
    yield made
    made.close()


def checked(process: Process, store: str = STORE, *, is_view_kept: bool = False) -> Check:
    return check_process(process.url, store, is_view_kept=is_view_kept)


def test_a_crash_loop_that_is_up_at_the_moment(process: Process) -> None:
    process.watch()
    process.set("watcher_last_look_timestamp_seconds", NOW)
    process.serve(started=NOW - 40)
    check = checked(process)
    assert "started 40 s ago" in check.detail
    assert "restarts again and again" in check.hint


def test_a_process_that_is_gone_evicted_or_pending() -> None:
    check = check_process(f"http://127.0.0.1:{free_port()}", STORE, is_view_kept=False)
    assert not check.ok
    assert "nobody answers" in check.detail
    assert "CrashLoopBackOff" in check.hint


def test_a_process_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel accepts connections for it."""
    monkeypatch.setattr(checks, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        check = check_process(url, STORE, is_view_kept=False)
    assert "it hangs" in check.detail
    assert "Restart it" in check.hint


def test_a_process_that_hangs_in_a_dead_file_system(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "last_beat", lambda: NOW - 300)
    process.watch()
    process.serve()
    check = checked(process)
    assert "has made no progress for 300 s" in check.detail
    assert "Restart it" in check.hint


def test_a_watcher_that_may_read_nothing(process: Process) -> None:
    process.watch()
    process.serve()
    process.unready = "nothing of the dump can be read: rank_0: permission denied"
    check = checked(process)
    assert "permission denied" in check.detail
    assert "doctor DUMP" in check.hint


def test_a_process_with_another_store(process: Process) -> None:
    process.consolidate().lease(held=True)
    process.serve()
    check = checked(process, "s3://dumps/other.zarr")
    assert f"has the store {STORE}, and not s3://dumps/other.zarr" in check.detail
    assert "the same setting `store`" in check.hint
    assert checked(process, "").ok  # nobody said which


def test_a_watcher_that_has_seen_no_dump(process: Process) -> None:
    process.watch()
    process.serve(started=NOW - 700)
    check = checked(process)
    assert "has seen no dump since it started 700 s ago" in check.detail
    assert "doctor DUMP" in check.hint


def test_a_watcher_with_a_backlog(process: Process) -> None:
    process.watch()
    process.set("watcher_last_look_timestamp_seconds", NOW)
    process.set("watcher_pending_steps", 1, rank="3")
    process.set("watcher_oldest_pending_timestamp_seconds", NOW - 1000, rank="3")
    process.serve()
    check = checked(process)
    assert "1 step waits for a commit, the oldest for 1000 s" in check.detail
    assert f"watch --explain --from http://127.0.0.1:{process.port}" in check.hint


def test_a_consolidator_without_a_lease_unless_it_stands_by(process: Process) -> None:
    process.consolidate()
    process.serve()
    check = checked(process)
    assert "holds no lease" in check.detail
    assert STORE in check.hint
    assert checked(process, is_view_kept=True).ok


def test_what_refuses_to_show_metrics_is_told_with_its_status(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance a proxy that asks for a token."""
    monkeypatch.setattr(checks, "get", lambda *_: (401, b"Unauthorized"))
    assert checked(process).detail.endswith(
        "is not a watcher or consolidator: it answers /metrics with status 401"
    )


def test_processes_are_checked_with_the_rest(made: MadeDump, process: Process, tmp_path: Path) -> None:
    made.add(np.zeros(3))
    store = tmp_path / "run.zarr"
    ingest_directly(made.root, store)
    process.watch()
    process.set("watcher_last_look_timestamp_seconds", NOW)
    process.serve()
    *_, check = run_checks(load(store=str(store)), made.root, [process.url])
    assert check.check == "process"
    assert f"has the store {STORE}" in check.detail
