"""What is killed, slow, removed or repaired: nothing is lost, and no reader meets half a step."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner, Result

import ingest
from bench.running import sample
from bench.steps import CountingStore, commit_tables, make_tables
from ingest.api import open_store, repair
from ingest.cli.app import app
from ingest.consolidating.consolidator import Consolidator
from ingest.reader.cube_conditions import open_cubes
from ingest.settings import Settings
from ingest.store_gc.plan import GcPolicy
from tests import checker
from tests.cli import Running, own_workers, run, run_here, start
from tests.damages import only
from tests.faults.proxy import Proxy
from tests.gc_stores import POLICY, gc, make_store
from tests.poison.sitecustomize import KILLS_DECODER, KILLS_READER
from tests.servers.ceph import CephS3, S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port, http_get
from tests.stores import DumpLibrary, MadeDump, ingest_directly, npy_header, tensor_name
from workers.errors import DamagedStore, StoreDenied
from workers.model import StepKey
from workers.store import commit
from workers.store.consolidated.cubes import CubeGrid
from workers.store.objects import ObjectStore
from workers.store.opening import connect, open_objects, resolve

# Commands that keep a store, as people run them: `consolidate` and `gc`.


# `consolidate` as people run it: once, beside a job, on a cluster, on object storage.


NAMES = [f"op{i}" for i in range(50)]


def put(objects: ObjectStore, rank: int, step: int, *, anomalous: Sequence[int] = ()) -> None:
    """Commit one step."""
    commit_tables(objects, StepKey(rank, step), make_tables(StepKey(rank, step), NAMES, anomalous))


def put_all(objects: ObjectStore, ranks: int, steps: int, anomalous_at: tuple[int, int]) -> None:
    """Commit all steps of all ranks, several at once: a request to Ceph takes 20 ms or more."""

    def put_one(key: tuple[int, int]) -> None:
        put(objects, *key, anomalous=[7] if key == anomalous_at else ())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put_one, product(range(ranks), range(steps))))


def test_once_says_what_it_took_in_and_find_asks_it(dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    assert (
        "no consolidated view"
        in run_here("find", store, "--consolidated", "-w", "nan_count > 0", code=2).stderr
    )
    said = run_here("consolidate", store).stderr
    assert "steps added: 1-3" in said
    assert "3 steps, 2 ranks, 243 tensors" in said
    again = run_here("consolidate", store, "--rebuild", "--json").json
    assert (again["appended"], again["ranks"]) == ([1, 2, 3], 2)

    found = run_here(
        "find", store, "--consolidated", "--where", "nan_count > 0", "--step", "2", "--json"
    ).json

    assert [row["op_type"] for row in found] == ["Log", "ReduceMean", "ReduceMean", "Neg", "Neg"]
    assert {(row["rank"], row["step"]) for row in found} == {(1, 2)}
    by_step = run_here("find", store, "--where", "nan_count > 0", "--step", "2", "--json").json
    assert [row["nan_count"] for row in found] == [row["nan_count"] for row in by_step]
    refused = run_here("find", store, "--consolidated", "--where", "nan_count > 0", "--rank", "1", code=2)
    assert "--consolidated does not go with --rank" in refused.stderr


def test_ingest_brings_the_view_up_to_date(dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    run("ingest", dumps["nan-log-2rank"] / "dump", "--store", store, "--quiet", "0", "--workers", "1")
    cubes = xr.open_zarr(store / "consolidated")
    assert cubes.nan_count.sel(step=3, rank=1).sum() == 7


def test_beside_a_job_it_follows_and_a_second_one_stands_by(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    objects = open_objects(resolve(store))
    commit.ensure_root(objects)
    follow = ("consolidate", store, "--follow", "--poll", "0.1", "--patience", "0")

    def has(*steps: int) -> Callable[[], bool]:
        def look() -> bool:
            cubes = open_cubes(objects)
            return cubes is not None and cubes.steps.tolist() == list(steps)

        return look

    with start(*follow) as first:
        put(objects, 0, 1)
        first.wait_until(has(1))
        with start(*follow) as second:
            second.wait_until(lambda: "is being written by process" in second.said)
            put(objects, 0, 2)
            first.wait_until(has(1, 2))
            first.kill()
            put(objects, 0, 3)
            second.wait_until(has(1, 2, 3))
            assert second.terminate() == 0


@pytest.mark.dask
@pytest.mark.s3
def test_on_a_cluster_and_on_object_storage(
    s3_bucket: S3Bucket,
    s3_cluster: DaskCluster,
    s3_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What tasks on a cluster write is what threads write, and a question takes few requests."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    url = f"{s3_bucket.url}/cubes.zarr"
    monkeypatch.setattr(CubeGrid, "for_size", classmethod(lambda *_: CubeGrid(2, 64, 16, steps=2)))
    objects = open_objects(resolve(url))
    commit.ensure_root(objects)
    put_all(objects, ranks=2, steps=3, anomalous_at=(1, 2))

    taken = ingest.consolidate(url, settings=Settings(scheduler=s3_cluster.address))

    assert taken.appended == (0, 1, 2)
    by_cluster = open_cubes(objects)
    assert by_cluster is not None
    blocks = [by_cluster.block(place) for place in range(3)]
    counting = CountingStore(objects)
    found = ingest.DumpStore(counting).consolidated().find("nan_count > 0")
    assert list(zip(found["rank"], found["step"], found["op_name"], strict=True)) == [(1, 2, "op7")]
    assert counting.requests <= 25
    assert xr.open_dataset(url, engine="dump-ingest").nan_count.sel(step=2).max() == 1
    with Consolidator(objects) as consolidator:
        consolidator.once(rebuild=True)
    by_threads = open_cubes(objects)
    assert by_threads is not None
    for before, place in zip(blocks, range(3), strict=True):
        np.testing.assert_array_equal(by_threads.block(place).statistics, before.statistics)
        np.testing.assert_array_equal(by_threads.block(place).digest, before.digest)


# `dump-ingest gc` and the commands that come after it, the consolidator, and object storage.


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump and its store; see `make_store`."""
    root = tmp_path_factory.mktemp("gc")
    make_store(root)
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    return shutil.copytree(base / "run.zarr", tmp_path / "run.zarr")


def answer(*args: object) -> Result:
    """Run a command in this process, which starts no other one."""
    return CliRunner().invoke(app, [*map(str, args)])


def test_commands_work_on_what_is_left(store: Path, base: Path, tmp_path: Path) -> None:
    gc(store, GcPolicy(keep_last=4))
    gc(store, GcPolicy(tensors_around_anomalies=0))
    ingest.consolidate(store)
    rows = {(row["rank"], row["step"]): row for row in json.loads(answer("ls", store, "--json").stdout)}
    assert {step for _, step in rows} == {2, 3, 4, 5}
    assert [rows[0, step]["has_tensors"] for step in (2, 3, 4, 5)] == [True, False, False, True]
    assert answer("ls", store).stdout.count("complete, no tensors") == 4
    assert json.loads(answer("origin", store, "--json").stdout)["step"] == 2
    where = ("--where", "nan_count > 0 and rank == 1")
    assert len(json.loads(answer("find", store, *where, "--json").stdout)) == 1
    found = json.loads(answer("find", store, "--consolidated", "--where", "max == 4", "--json").stdout)
    assert {(row["rank"], row["step"]) for row in found} == {(0, 4), (1, 3)}
    assert answer("trend", store, "MatMul*", "--json").exit_code == 0
    kept, before = (answer("divergence", path, "--json") for path in (store, base / "run.zarr"))
    assert kept.exit_code == before.exit_code
    exported = answer("export", store, tmp_path / "out", "-n", "4")
    assert exported.exit_code == 4
    for rank in (0, 1):
        assert f"rank {rank} step 4: 2 files: the tensors were removed" in exported.stderr
    shown = answer("show", store, "MatMul*output.0", "-r", "0", "-n", "4")
    assert "no anomaly within 0 dumped steps" in shown.stdout
    compared = answer("compare", f"{store}@0,4", f"{store}@0,5")
    assert "min 4 and 5; elements were removed from the store" in compared.stdout


@pytest.mark.s3
def test_on_object_storage(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes and times come from listings, and many objects go with one request."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    url = f"{s3_bucket.url}/run.zarr"
    objects = connect(resolve(url))
    objects.put_many(
        {key: data for key, data in checker.objects(base / "run.zarr").items() if not key.endswith(".tmp")}
    )
    waits = ingest.plan_gc(url, POLICY)
    assert "remains" not in {action.what for action in waits.actions}
    assert abs(time.time() - min(entry.modified_at for entry in objects.listed().values())) < 60
    plan = ingest.plan_gc(url, GcPolicy(keep_last=2, grace_s=0))
    before = objects.listed()
    report = ingest.apply_gc(url, plan)
    assert not report.left
    after = objects.listed()
    assert len(before.keys() - after.keys()) == report.objects == plan.objects
    assert sum(before[key].nbytes for key in before.keys() - after.keys()) == report.nbytes
    opened = ingest.open_store(url)
    assert {key.step for key in opened.keys} == {4, 5}
    assert list(opened.verify()) == []
    objects.delete_many(["nothing/there"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    denied = connect(resolve(url, {"use_ssl": False}))
    with pytest.raises(StoreDenied):
        denied.delete_many(["zarr.json"])


_KILLED_WRITER = """
import sys
from workers.store.opening import connect, resolve
connect(resolve(sys.argv[1])).put("rank_0/step_7/tensors/float32/c/0", bytes(2**30))
"""


@pytest.mark.s3
def test_uploads_of_a_killed_writer_are_shown_and_ended(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    objects = connect(resolve(s3_bucket.url))
    beside = connect(resolve(f"{s3_bucket.url}-of-others"))
    commit.ensure_root(objects)
    with ExitStack() as running:
        for url in (s3_bucket.url, f"{s3_bucket.url}-of-others"):
            writer = running.enter_context(subprocess.Popen([sys.executable, "-c", _KILLED_WRITER, url]))
            where = connect(resolve(url))
            deadline = time.monotonic() + 60
            while not any(upload.nbytes for upload in where.unfinished_uploads()):
                assert time.monotonic() < deadline
                assert writer.poll() is None
                time.sleep(0.02)
            writer.send_signal(signal.SIGKILL)
    (left,) = objects.unfinished_uploads()
    assert left.key == "rank_0/step_7/tensors/float32/c/0"
    assert left.nbytes >= 32 * 2**20
    young = run("gc", s3_bucket.url, env=s3_environment)
    assert "1 uploads in parts" in young.stderr
    planned = run("gc", s3_bucket.url, "--grace", "0s", env=s3_environment)
    assert "incomplete uploads" in planned.stdout
    assert objects.unfinished_uploads() == [left]
    done = run("gc", s3_bucket.url, "--grace", "0s", "--apply", env=s3_environment)
    assert "incomplete uploads" in done.stdout
    assert objects.unfinished_uploads() == []
    assert len(beside.unfinished_uploads()) == 1  # not below this store


# Whatever is killed in the middle: no reader meets half a step, and the work is finished afterwards.
#
# Workers of a cluster and the gateway of the object store are killed in `tests.faults`.


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
def killed_store(tmp_path: Path) -> Path:
    return tmp_path / "run.zarr"


@pytest.fixture
def own_cluster() -> Iterator[DaskCluster]:
    """A cluster of which parts may be killed."""
    with DaskCluster() as running:
        yield running


def commits(killed_store: Path) -> int:
    return len([*killed_store.glob("rank_*/step_*/zarr.json"), *killed_store.glob("rank_*/run/zarr.json")])


def wait_for_the_middle(running: Running, killed_store: Path) -> None:
    """Return when something is committed, and something else is half written."""

    def is_the_middle() -> bool:
        begun = [*killed_store.glob("rank_*/step_*/*/tensors/*/c/0")]
        return 0 < commits(killed_store) < len(begun)

    running.wait_until(is_the_middle, timeout_s=90)
    assert commits(killed_store) < LEAVES


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.dask
def test_killed_worker_of_the_command(dump: Path, killed_store: Path) -> None:
    """The command starts another worker, and repeats what was lost."""
    with (
        checker.Reader(killed_store) as reader,
        start("ingest", dump, "--store", killed_store, env=SMALL_TASKS) as ingest,
    ):
        wait_for_the_middle(ingest, killed_store)
        killed = own_workers(ingest.pid)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert killed
        assert ingest.finish() == 0
    assert reader.seen
    checker.check(killed_store, dump)


@pytest.mark.dask
def test_killed_watcher(dump: Path, killed_store: Path, cluster: DaskCluster) -> None:
    """Its workers go with it; another one takes up what is left, and repeats nothing that is committed."""
    words = ("watch", dump, "--store", killed_store)
    with checker.Reader(killed_store):
        with start(*words, env=SMALL_TASKS) as watch:
            wait_for_the_middle(watch, killed_store)
            orphans = own_workers(watch.pid)
            watch.kill()
        deadline = time.monotonic() + 20
        while not all(is_gone(pid) for pid in orphans):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = {path: path.stat().st_mtime_ns for path in killed_store.glob("rank_*/step_*/zarr.json")}
        assert len(before) < LEAVES

        with start(*words, "--scheduler", cluster.address, env=SMALL_TASKS) as watch:
            watch.wait_until(lambda: commits(killed_store) == LEAVES, timeout_s=90)
            assert watch.terminate() == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    checker.check(killed_store, dump)


@pytest.mark.dask
@pytest.mark.campaign
def test_killed_scheduler(dump: Path, killed_store: Path, own_cluster: DaskCluster) -> None:
    """The watcher outlives it, and goes on when there is one again at the same address."""
    words = ("watch", dump, "--store", killed_store, "--scheduler", own_cluster.address)
    with checker.Reader(killed_store) as reader, start(*words, env=SMALL_TASKS) as watch:
        wait_for_the_middle(watch, killed_store)
        own_cluster.kill_scheduler()
        time.sleep(1)
        assert watch.alive
        own_cluster.kill_worker()
        own_cluster.start_scheduler()
        own_cluster.start_worker()
        watch.wait_until(lambda: commits(killed_store) == LEAVES, timeout_s=90)
        assert watch.terminate() == 0
    assert reader.seen
    checker.check(killed_store, dump)


# A file that really kills the workers of a command.


ENV = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "poison"),
    "DUMP_INGEST_CONSOLIDATE": "false",
}


@pytest.mark.dask
@pytest.mark.slow
def test_poison_kills_a_worker_of_ingest_and_not_the_command(tmp_path: Path) -> None:
    """Whose workers are copies of it, and no cluster."""
    made, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    made.add(np.ones(50, "<f4"))
    made.add(npy_header("<f4", (16,)) + KILLS_DECODER.ljust(64), tensor_name("Evil.op"))
    done = run("ingest", made.root, "--store", store, env=ENV, code=4)
    assert done.stderr.count("the worker that took the task died (SIGKILL)") == 1
    said = run_here("ls", store, "--problems").stdout
    assert "Evil" in said
    assert "kills the process that decodes it" in said


@pytest.mark.dask
@pytest.mark.slow
@pytest.mark.campaign
def test_poison_costs_one_file_and_not_its_step_nor_others(tmp_path: Path) -> None:
    """Small steps share a task. What cannot be decoded is kept as bytes, what cannot be read is named."""
    made, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        for slot in range(3):
            made.add(np.full(50, slot + step, "<f4"), tensor_name(slot=slot), step=step)
    content = npy_header("<f4", (16,)) + KILLS_DECODER.ljust(64)
    made.add(content, tensor_name("Evil.op"), step=1)
    made.add(KILLS_READER, "notes.txt", step=1)

    words = ("watch", made.root, "--store", store)
    with start(*words, env=ENV) as watch:
        watch.wait_until(lambda: len(watch.events("step_committed")) == 3, timeout_s=90)
        poisoned = [event for event in watch.events("step_failed") if "died" in event["error"]]
        # One death of a worker: from then on, what dies are processes that are made for it.
        assert len(watch.events("task_retried")) == 3
        assert [event["step"] for event in poisoned] == [1, 1]
        watch.wait_until(lambda: len(own_workers(watch.pid)) == 1, timeout_s=60)
        assert watch.terminate() == 0

    steps = {key.step: open_store(store).step(key.rank, key.step) for key in open_store(store).keys}
    assert {n: step.commit.summary.status for n, step in steps.items()} == {
        0: "complete",
        1: "partial",
        2: "complete",
    }
    bad = steps[1]
    assert (bad.commit.summary.tensors, bad.commit.summary.quarantined) == (3, 2)
    kinds = dict(zip(bad.tables.label("source"), bad.tables.label("kind"), strict=True))
    evil = next(source for source in kinds if "Evil" in source)
    assert kinds[evil] == "quarantined"
    row = list(bad.tables.label("source")).index(evil)
    assert bytes(bad.read(row)) == content

    said = run_here("ls", store, "--problems").stdout
    for word in ("Evil", "kills the process that decodes it", "notes.txt", "kills the process that reads it"):
        assert word in said

    # A new watcher learns from the store what is poison: it kills nobody, and commits nothing.
    again = run("ingest", *words[1:], "--json", env=ENV)
    assert again.json == []
    assert "retrying" not in again.stderr


# A store that is slow: lag grows, and the memory of the service is bounded, whatever waits.


#: Names, sizes and times of the files that wait are held; see docs/operation.md.
_FILE_NBYTES = 2048
#: What comes and goes with listing, in any case.
_SLACK_NBYTES = 12 * 1024 * 1024


@pytest.mark.s3
@pytest.mark.campaign
def test_a_slow_store_makes_lag_grow_and_not_memory(
    tmp_path: Path, ceph: CephS3, s3_bucket: S3Bucket, s3_environment: dict[str, str]
) -> None:
    made = MadeDump(tmp_path / "dump")
    values = np.zeros(262_144, "<f4")

    def dump(steps: range) -> None:
        for step in steps:
            made.add(values + step, tensor_name(time=step), step=step)

    def metric(name: str) -> float:
        lines = http_get(port, "/metrics")[1].decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(f"{name}{{"))

    def pending() -> float:
        return metric("dump_ingest_watcher_pending_steps")

    port = free_port()
    upstream = urlsplit(ceph.endpoint_url).port
    assert upstream is not None
    with Proxy(upstream, seed=0) as proxy:
        env = {
            **s3_environment,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "DUMP_INGEST_INFLIGHT_SIZE": "4MiB",
            "DUMP_INGEST_METRICS": f"127.0.0.1:{port}",
        }
        dump(range(3))
        with start("watch", made.root, "--store", s3_bucket.url, env=env) as watch:
            watch.wait_until(lambda: len(watch.events("step_committed")) == 3, timeout_s=60)
            (worker,) = own_workers(watch.pid)
            proxy.delay_s = 0.05
            dump(range(3, 10))
            watch.wait_until(lambda: pending() > 4)
            before = sample(watch.pid).rss_nbytes, sample(worker).rss_nbytes
            done = len(watch.events("step_committed"))
            dump(range(10, 22))
            watch.wait_until(lambda: pending() > 8)
            assert (
                metric("dump_ingest_watcher_newest_step") - metric("dump_ingest_watcher_committed_step") > 8
            )
            watch.wait_until(lambda: len(watch.events("step_committed")) > done)  # slow, and not away
            grown = sample(watch.pid).rss_nbytes - before[0]
            assert grown < 12 * _FILE_NBYTES + _SLACK_NBYTES < 20 * values.nbytes
            proxy.delay_s = 0.0
            watch.wait_until(lambda: pending() == 0, timeout_s=120)
            assert sample(worker).rss_nbytes - before[1] < _SLACK_NBYTES
            assert watch.terminate() == 0
    checker.check(checker.download(s3_bucket, tmp_path / "store"), made.root)


# Damage of a store as a user meets it: named by `ingest`, and no hindrance for other steps.


@pytest.fixture
def damaged_dump(tmp_path: Path) -> MadeDump:
    made = MadeDump(tmp_path / "damaged_dump")
    for step in range(3):
        made.add(np.arange(500, dtype="<f4") * step, tensor_name(time=1), step=step)
    return made


@pytest.fixture
def damaged_store(damaged_dump: MadeDump, tmp_path: Path) -> Path:
    ingest_directly(damaged_dump.root, tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def test_ingest_names_damage_and_writes_a_lost_root_again(
    damaged_dump: MadeDump, damaged_store: Path
) -> None:
    root = (damaged_store / "zarr.json").read_bytes()
    (damaged_store / "zarr.json").unlink()
    only(damaged_store, "rank_0/step_1/*/tensors/float32/c/0").unlink()
    with pytest.raises(DamagedStore, match=r"its zarr\.json is missing"):
        open_store(damaged_store)

    named = run("ingest", damaged_dump.root, "--store", damaged_store, code=3)

    assert (damaged_store / "zarr.json").read_bytes() == root
    assert "2 steps unchanged" in named.stderr
    assert "rank 0 step 1" in named.stderr
    assert f"dump-ingest repair {damaged_store}" in named.stderr
    assert repair(damaged_store, apply=True).is_clean
    (damaged_store / "zarr.json").write_bytes(root[:9])
    assert "dump-ingest repair" in run("ingest", damaged_dump.root, "--store", damaged_store, code=3).stderr
    assert repair(damaged_store, apply=True).is_clean
    assert (damaged_store / "zarr.json").read_bytes() == root


@pytest.mark.parametrize("pattern", ["zarr.json", "*/index/labels/c/0/0"])
def test_a_step_that_may_not_be_read_stops_no_answer(
    pattern: str, damaged_store: Path, unprivileged: tuple[str, ...]
) -> None:
    only(damaged_store, f"rank_0/step_1/{pattern}").chmod(0)
    listed = run("find", damaged_store, "--name", "*", "--json", code=3, prefix=unprivileged)
    assert [row["step"] for row in listed.json] == [0, 2]
    assert "Permission denied. Check owner and mode" in listed.stderr
    assert "AWS" not in listed.stderr
    assert "repair" not in listed.stderr  # which may not read it, either
