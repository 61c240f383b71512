"""Whatever is killed in the middle: no reader meets half a step, and the work is finished afterwards.

Workers of a cluster and the gateway of the object store are killed in `tests.faults`.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import checker
from tests.cli import Running, own_workers, start
from tests.servers.cluster import DaskCluster
from tests.stores import DumpLibrary

pytestmark = pytest.mark.dask

#: So many small tasks that there is a middle.
SMALL_TASKS = {
    "DUMP_INGEST_CHUNK_SIZE": "4KiB",
    "DUMP_INGEST_SHARD_SIZE": "8KiB",
    "DUMP_INGEST_JOB_SIZE": "24KiB",
    "DUMP_INGEST_INFLIGHT_SIZE": "64KiB",
}
LEAVES = 8


@pytest.fixture
def dump(dumps: DumpLibrary) -> Path:
    """Six iterations, and the run files of two ranks."""
    return dumps["nan-log-2rank"] / "dump"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "run.zarr"


@pytest.fixture
def own_cluster() -> Iterator[DaskCluster]:
    """A cluster of which parts may be killed."""
    with DaskCluster() as running:
        yield running


def commits(store: Path) -> int:
    return len([*store.glob("rank_*/step_*/zarr.json"), *store.glob("rank_*/run/zarr.json")])


def wait_for_the_middle(running: Running, store: Path) -> None:
    """Return when something is committed, and something else is half written."""

    def is_the_middle() -> bool:
        begun = [*store.glob("rank_*/step_*/*/tensors/*/c/0")]
        return 0 < commits(store) < len(begun)

    running.wait_until(is_the_middle, timeout_s=90)
    assert commits(store) < LEAVES


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return True
    return state == "Z"


def test_killed_worker_of_the_command(dump: Path, store: Path) -> None:
    """The command starts another worker, and repeats what was lost."""
    with checker.Reader(store) as reader, start("ingest", dump, "--store", store, env=SMALL_TASKS) as ingest:
        wait_for_the_middle(ingest, store)
        killed = own_workers(ingest.pid)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert killed
        assert ingest.finish() == 0
    assert reader.seen
    checker.check(store, dump)


def test_killed_watcher(dump: Path, store: Path, cluster: DaskCluster) -> None:
    """Its workers go with it; another one takes up what is left, and repeats nothing that is committed."""
    words = ("watch", dump, "--store", store)
    with checker.Reader(store):
        with start(*words, env=SMALL_TASKS) as watch:
            wait_for_the_middle(watch, store)
            orphans = own_workers(watch.pid)
            watch.kill()
        deadline = time.monotonic() + 20
        while not all(is_gone(pid) for pid in orphans):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = {path: path.stat().st_mtime_ns for path in store.glob("rank_*/step_*/zarr.json")}
        assert len(before) < LEAVES

        with start(*words, "--scheduler", cluster.address, env=SMALL_TASKS) as watch:
            watch.wait_until(lambda: commits(store) == LEAVES, timeout_s=90)
            assert watch.terminate() == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    checker.check(store, dump)


@pytest.mark.campaign
def test_killed_scheduler(dump: Path, store: Path, own_cluster: DaskCluster) -> None:
    """The watcher outlives it, and goes on when there is one again at the same address."""
    words = ("watch", dump, "--store", store, "--scheduler", own_cluster.address)
    with checker.Reader(store) as reader, start(*words, env=SMALL_TASKS) as watch:
        wait_for_the_middle(watch, store)
        own_cluster.kill_scheduler()
        time.sleep(1)
        assert watch.alive
        own_cluster.kill_worker()
        own_cluster.start_scheduler()
        own_cluster.start_worker()
        watch.wait_until(lambda: commits(store) == LEAVES, timeout_s=90)
        assert watch.terminate() == 0
    assert reader.seen
    checker.check(store, dump)
