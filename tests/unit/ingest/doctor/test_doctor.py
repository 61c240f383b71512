"""What `doctor` looks at."""

import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge

from ingest.consolidating.lease import VIEW_LEASE
from ingest.doctor import checks
from ingest.doctor.checks import (
    Barrier,
    Check,
    Identity,
    check_clock,
    check_configuration,
    check_process,
    check_scheduler,
    run_checks,
)
from ingest.metrics import ConsolidatorMetrics, WatcherMetrics, serve, server
from ingest.settings import load
from ingest.store_gc.execute import record_run
from tests.cli import run
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port
from tests.stores import DumpLibrary, MadeDump, ingest_directly, tensor_name
from tests.wrapped_objects import WrappedObjects
from workers.errors import ClockSkewed, ClusterError, StoreSilent, StoreUnavailable
from workers.store.opening import open_objects, resolve

# What `doctor` looks at.


# Each check answers one question, and says what to do if it fails.


def by_name(results: list[Check]) -> dict[str, Check]:
    return {result.check: result for result in results}


def test_a_dump_that_is_not_there_fails_with_a_hint_and_the_rest_is_checked(tmp_path: Path) -> None:
    results = by_name(run_checks(load(store=str(tmp_path / "run.zarr")), tmp_path / "nowhere"))
    assert not results["dump"].ok
    assert results["dump"].hint
    assert not results["store"].ok  # nobody can tell whether the store would lie in the dump


def test_a_store_that_changes_what_is_written_is_not_to_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changing(WrappedObjects):
        def get(self, key: str) -> bytes | None:
            data = super().get(key)
            return data and data[:-1] + bytes([data[-1] ^ 1])

    monkeypatch.setattr(checks, "open_objects", lambda address: Changing(open_objects(address)))
    store = by_name(run_checks(load(store=str(tmp_path / "run.zarr")), None))["store"]
    assert not store.ok
    assert "did not come back as it was written" in store.detail
    assert "Do not ingest into this store" in store.hint


@pytest.mark.parametrize(
    ("url", "error", "remedy"),
    [
        ("s3://bucket/run.zarr", StoreUnavailable, "AWS_ENDPOINT_URL"),
        ("s3://bucket/run.zarr", StoreSilent, "firewall"),
        ("s3://bucket/run.zarr", ClockSkewed, "clock"),
        ("run.zarr", StoreUnavailable, "mounted read-only"),
    ],
)
def test_a_store_that_does_not_answer_is_to_be_looked_for(
    url: str, error: type[StoreUnavailable], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(WrappedObjects):
        def get(self, key: str) -> bytes | None:
            message = f"cannot read {key}"
            raise error(message)

    monkeypatch.setattr(checks, "open_objects", lambda _: Away(open_objects(resolve(tmp_path))))
    store = by_name(run_checks(load(store=url), None))["store"]
    assert (store.ok, store.detail) == (False, "cannot read zarr.json")
    assert remedy in store.hint


def test_a_store_of_another_dump_is_not_to_be_used(made: MadeDump, store: Path, tmp_path: Path) -> None:
    made.add(np.zeros(3))
    ingest_directly(made.root, store)
    assert by_name(run_checks(load(store=str(store)), made.root))["dump in store"].ok
    other = MadeDump(tmp_path / "other")
    other.add(np.ones(3), step=9)
    results = by_name(run_checks(load(store=str(store)), other.root))
    check = results["dump in store"]
    assert not check.ok
    assert "backlog" not in results  # a step of the same number is another step
    assert str(made.root) in check.detail
    assert f"--continues {made.root}" in check.hint
    told = load(store=str(store), continues=str(made.root))
    assert by_name(run_checks(told, other.root))["dump in store"].ok


def test_directories_that_look_like_ranks_and_are_none_fail(made: MadeDump) -> None:
    made.add(np.zeros(3))
    assert "names" not in by_name(run_checks(load(), made.root))
    made.add(np.zeros(3), rank=4294967296)
    check = by_name(run_checks(load(), made.root))["names"]
    assert not check.ok
    assert "rank_4294967296" in check.detail
    assert "Rename" in check.hint


class TestBrokenStates:
    """Each state that raises an alert is named by one failing check, with the one thing to do."""

    @pytest.fixture
    def store(self, made: MadeDump, tmp_path: Path) -> Path:
        """A store with two ranks of one step, without a consolidated view."""
        for rank in (0, 1):
            made.add(np.ones(3), tensor_name(), rank=rank, step=3)
        ingest_directly(made.root, tmp_path / "run.zarr")
        return tmp_path / "run.zarr"

    def failing(self, made: MadeDump, store: Path, **flags: Any) -> Check:
        results = run_checks(load(store=str(store), **flags), made.root)
        [failed] = [result for result in results if not result.ok]
        assert failed.hint
        return failed

    def test_fewer_ranks_than_expected(self, made: MadeDump, store: Path) -> None:
        failed = self.failing(made, store, expected_ranks=4)
        assert (failed.check, failed.detail) == ("ranks", "2 of 4 ranks, by expected_ranks")
        assert "Ranks 2-3 have no dump here" in failed.hint
        results = by_name(run_checks(load(store=str(store), expected_ranks=0), made.root))
        assert "ranks" not in results

    def test_ranks_by_the_rank_table_are_told(self, made: MadeDump, store: Path) -> None:
        devices = [{"device_id": str(rank), "rank_id": str(rank)} for rank in range(4)]
        (made.root / "hccl.json").write_text(json.dumps({"server_list": [{"device": devices}]}))
        ranks = by_name(run_checks(load(store=str(store)), made.root))["ranks"]
        assert ranks.ok  # the others may be on other hosts
        assert ranks.detail == "2 of 4 ranks, by the rank table"

    def test_steps_that_nobody_takes(self, made: MadeDump, store: Path) -> None:
        path = made.add(np.ones(3), tensor_name(), rank=1, step=4)
        results = by_name(run_checks(load(store=str(store)), made.root))
        assert results["backlog"].ok  # it was written a moment ago
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "MAX_LAG_S", -1.0)
            failed = self.failing(made, store)
        assert failed.check == "backlog"
        assert failed.detail.startswith("1 step (")
        assert "dump-ingest ingest DUMP" in failed.hint
        assert path.exists()

    def test_the_newest_step_of_many_is_not_taken(
        self, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many steps before it are in the store, it is one that nobody takes."""
        monkeypatch.setattr(checks, "_READ", 1)
        monkeypatch.setattr(checks, "MAX_LAG_S", -1.0)
        complete = by_name(run_checks(load(store=str(store)), made.root))["backlog"]
        assert (complete.ok, complete.detail) == (True, "all 2 steps of 2 ranks are in the store")
        made.add(np.ones(3), tensor_name(), rank=1, step=4)
        assert self.failing(made, store).detail.startswith("1 step (")
        (store / "rank_1" / "step_4").mkdir()  # left by a writer that was killed
        assert self.failing(made, store).detail.startswith("1 step (")

    def test_a_consolidator_that_has_died(self, made: MadeDump, store: Path) -> None:
        objects = open_objects(resolve(str(store)))
        view = by_name(run_checks(load(store=str(store)), made.root))["view"]
        assert view.ok
        assert "consolidate STORE --follow" in view.hint
        objects.put(VIEW_LEASE, b'{"owner": "host-9:77:x", "renewed_at": 1000.0}')
        failed = self.failing(made, store)
        assert failed.check == "view"
        assert "step 3 is not in the consolidated view" in failed.detail
        assert "process 77 on host-9" in failed.detail

    def test_a_gc_that_fails(self, made: MadeDump, store: Path) -> None:
        objects = open_objects(resolve(str(store)))
        record_run(objects, "it may not delete")
        failed = self.failing(made, store)
        assert failed.check == "gc"
        assert "failed 0 min ago: it may not delete" in failed.detail
        record_run(objects)
        assert by_name(run_checks(load(store=str(store)), made.root))["gc"].ok

    def test_another_store_than_that_of_the_watchers(self, made: MadeDump, store: Path) -> None:
        other = by_name(run_checks(load(store=f"{store}-2"), made.root))["store"]
        assert other.ok
        assert "compare the setting `store` of all processes" in other.hint

    def test_a_clock_that_is_off(self) -> None:
        assert check_clock(1000.0, 1060.0).ok
        failed = check_clock(1000.0, 400.0)
        assert (failed.ok, failed.detail) == (False, "600 s behind the store's")
        assert "timedatectl" in failed.hint


# What keeps a process from a dump, and what it is told to set.


TRAINER = 4321


def barrier(mode: int, *, is_directory: bool = False) -> Barrier:
    kind = stat.S_IFDIR if is_directory else stat.S_IFREG
    return Barrier(Path("/d/f"), kind | mode, TRAINER, 500, is_directory)


@given(mode=st.integers(0, 0o777), member=st.booleans(), is_directory=st.booleans())
def test_mode_is_not_blamed_where_it_admits(mode: int, member: bool, is_directory: bool) -> None:
    me = Identity(7, frozenset({500} if member else set()))
    bits = (mode >> 3 if member else mode) & 0o7
    admits = bits & (0o5 if is_directory else 0o4) == (0o5 if is_directory else 0o4)
    advice = barrier(mode, is_directory=is_directory).advice(me, Path("/d"))
    assert ("would admit" in advice) is admits


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_doctor_explains_the_dump_of_a_training_user(
    dumps: DumpLibrary, tmp_path: Path, unprivileged: tuple[str, ...]
) -> None:
    """The directories of MindSpore are 0700 of that user; the parent alone shows it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "dump").symlink_to(dumps["nan-log-2rank"] / "dump")
    os.chown(home, TRAINER, TRAINER)
    done = run("doctor", home / "dump", code=1, prefix=unprivileged)
    assert f"{home}: permission denied; the directory has mode 0700, owner {TRAINER}" in done.stdout
    assert f"runAsUser: {TRAINER}" in done.stdout
    assert "identity" in done.stdout
    refused = run("ingest", home / "dump", "--store", tmp_path / "run.zarr", code=1, prefix=unprivileged)
    assert "permission denied" in refused.stderr


# What `doctor` says of the configuration that lies in a dump.


def write(root: Path, **changes: object) -> None:
    common = {
        "dump_mode": 0,
        "path": "/dump",
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **changes,
    }
    directory = root / "rank_0" / ".dump_metadata"
    directory.mkdir(parents=True)
    (directory / "data_dump.json").write_text(
        json.dumps({"common_dump_settings": common, "e2e_dump_settings": {}})
    )
    (directory / "config.json").write_text('{"device_target": "CPU", "ms_version": "2.10.0"}')


def test_a_real_dump_has_a_good_configuration(dumps: DumpLibrary) -> None:
    (check,) = check_configuration(dumps["nan-log-2rank"] / "dump")
    assert (check.ok, check.check) == (True, "dump configuration")


def test_what_is_wrong_is_said_for_the_version_and_device_of_the_dump(tmp_path: Path) -> None:
    write(tmp_path, saved_data="statistic")
    (check,) = check_configuration(tmp_path)
    assert not check.ok
    assert "statistics are not supported on CPU" in check.detail
    assert "dump-ingest check" in check.hint
    (tmp_path / "rank_0/.dump_metadata/data_dump.json").write_text("{")
    (check,) = check_configuration(tmp_path)
    assert (check.ok, "is not JSON" in check.detail) == (False, True)


# A watcher or consolidator that runs is asked; for each broken state, one thing is to be done.


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


# The scheduler and its workers; tests/integration/test_network.py has a worker that hangs.


@pytest.mark.dask
def test_workers_are_counted_and_those_that_are_silent_named(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(scheduler=cluster.address).settings
    check = check_scheduler(settings)
    assert (check.ok, check.detail) == (True, f"{cluster.address}: 2 workers, 2 threads, not encrypted")
    monkeypatch.setattr(checks, "_SILENT_S", -1.0)
    check = check_scheduler(settings)
    assert not check.ok
    assert "it does not hear of tcp://127.0.0.1:" in check.detail
    assert "restart them" in check.hint


@pytest.mark.dask
def test_a_scheduler_that_is_gone_is_an_error() -> None:
    with pytest.raises(ClusterError, match="no Dask scheduler"):
        check_scheduler(load(scheduler="tcp://127.0.0.1:9", scheduler_timeout_s=0.2).settings)


@pytest.mark.dask
def test_a_scheduler_without_this_version_is_named(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance one that others run, from an image of their own."""

    def silences() -> None: ...

    # It is sent by its name.
    silences.__module__, silences.__qualname__ = "not_installed_there", "silences"
    module = ModuleType(silences.__module__)
    module.silences = silences  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(checks, "silences", silences)
    with pytest.raises(
        ClusterError, match="the scheduler does not have this version of dump-ingest"
    ) as error:
        check_scheduler(load(scheduler=cluster.address).settings)
    assert "for all roles" in error.value.hint
