"""`consolidate` as people run it: once, beside a job, on a cluster, on object storage."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import ingest
from bench.steps import CountingStore, commit_tables, make_tables
from ingest.consolidating.consolidator import Consolidator
from ingest.reader.cube_conditions import open_cubes
from ingest.settings import Settings
from tests.cli import run, start
from tests.dumps import DumpLibrary
from tests.in_process import run_here
from tests.pipeline import ingest_directly
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from workers.model import StepKey
from workers.store import commit
from workers.store.consolidated.cubes import CubeGrid
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve

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
