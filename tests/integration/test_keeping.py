"""Commands that keep a store, as people run them: `consolidate` and `gc`."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner, Result

import ingest
from bench.steps import CountingStore, commit_tables, make_tables
from ingest.cli.app import app
from ingest.consolidating.consolidator import Consolidator
from ingest.reader.cube_conditions import open_cubes
from ingest.settings import Settings
from ingest.store_gc.plan import GcPolicy
from tests import checker
from tests.cli import run, run_here, start
from tests.gc_stores import POLICY, gc, make_store
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.stores import DumpLibrary, ingest_directly
from workers.errors import StoreDenied
from workers.model import StepKey
from workers.store import commit
from workers.store.consolidated.cubes import CubeGrid
from workers.store.objects import ObjectStore
from workers.store.opening import connect, open_objects, resolve

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
