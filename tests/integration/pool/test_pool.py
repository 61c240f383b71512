"""The pool of tensors that ranks share, under interruptions, gc and several writers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import GcPolicy, apply_gc, consolidate, open_store, plan_gc
from ingest.reader.catalog import Catalog
from ingest.reader.verifying import verify
from ingest.service.one_shot import Report
from tests import checker
from tests.cli import run as cli_run
from tests.gc_stores import age, gc
from tests.pools import RANKS, TIME, PooledRun, replicas, run, small_pools, values_of
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.services import ingest as ingest_service
from tests.stores import MadeDump, ingest_directly, tensor_name
from tests.wrapped_objects import WrappedObjects
from tests.xxh3_forgery import forged
from workers.errors import SourceChanged, TensorsRemoved
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.record import WithoutTensors
from workers.tasks import read_back as read_back_task
from workers.tasks.convert import convert
from workers.tasks.publish import publish
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back

# What `gc` removes from the pool, and what it leaves.


def test_gc_removes_a_step_and_its_pool_at_once(pooled: PooledRun) -> None:
    pooled.take(RANKS, 1, replicas(1))
    pooled.consolidate()
    pooled.take(RANKS, 2, replicas(2))
    age(pooled.store)
    gc(pooled.store, GcPolicy(keep_last=1))
    assert pooled.pool(1) == {}
    assert pooled.pool(2) != {}
    assert not list(verify(open_store(str(pooled.store))))


def test_gc_leaves_the_pool_of_a_step_that_somebody_writes(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    gc(pooled.store, GcPolicy(ranks=(0,), steps=(1,)))
    age(pooled.store / "pool")
    pooled.add(1, 1, replicas(1)(1))
    for job in pooled.plan(1, 1).jobs:
        convert(job)  # and is not published yet
    age(pooled.store / "pool")
    assert not [action for action in plan_gc(str(pooled.store)).actions if action.what == "pool"]


def test_a_plan_that_is_out_of_date_removes_nothing_that_is_referred_to(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    gc(pooled.store, GcPolicy(ranks=(0,), steps=(1,)))
    age(pooled.store)
    plan = plan_gc(str(pooled.store))
    assert [action for action in plan.actions if action.what == "pool"]
    pooled.add(1, 1, replicas(1)(1))
    pooled.ingest(1, 1)
    age(pooled.store / "pool")  # even if it were not young again
    report = apply_gc(str(pooled.store), plan)
    assert {done.left for done in report.left} == {"rank 1 step 1 refers to it"}
    assert not list(verify(open_store(str(pooled.store)), [StepKey(1, 1)]))


def test_tensors_that_one_rank_drops_stay_for_the_others(pooled: PooledRun) -> None:
    pooled.take(2, 1, replicas(1))
    age(pooled.store)
    committed = pooled.commit(0, 1)
    before = committed.summary
    without = WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "test")
    dropped = commit.drop_tensors(pooled.objects, committed, without)
    assert dropped.record.pool == {}
    assert 0 < dropped.summary.stored_bytes < before.stored_bytes / 4
    gc(pooled.store, GcPolicy())
    assert not list(verify(open_store(str(pooled.store))))
    (tensor, *_) = open_store(str(pooled.store)).tensors(rank=1, step=1, name="Add.net_weight0*")
    np.testing.assert_array_equal(tensor.read(), values_of(1000))
    with pytest.raises(TensorsRemoved):
        open_store(str(pooled.store)).tensors(rank=0, step=1, name="Add.net_weight0*")[0].read()


# Ranks that share tensors, whoever is killed, races with another, or forges what it dumps.


def test_a_hostile_rank_gets_nothing_of_its_own_into_others(pooled: PooledRun) -> None:
    """Its tensors have the XXH3 digests of those of rank 1, in the view and in the index, and other bytes."""
    for rank in range(2):
        pooled.add(rank, 1, replicas(1)(rank))
    genuine = values_of(1003).tobytes()
    (path,) = pooled.dump.root.glob("rank_0/*/*/1/Add.net_weight3*")
    content = path.read_bytes()
    path.write_bytes(content.replace(genuine, forged(genuine)))
    pooled.ingest(0, 1)  # it comes first
    pooled.ingest(1, 1)
    store = open_store(str(pooled.store))
    assert len({tensor.digest for tensor in store.tensors(step=1, name="Add.net_weight3*")}) == 1
    for number, tensor in enumerate(store.tensors(rank=1, step=1, name="Add.net_weight*")):
        np.testing.assert_array_equal(tensor.read(), values_of(1000 + number))
    # It could take over nothing of theirs either.
    (taken,) = store.tensors(rank=0, step=1, name="Add.net_weight3*")
    assert taken.read().tobytes() == forged(genuine)
    assert pooled.is_whole()


def test_a_hostile_rank_pretends_to_share(pooled: PooledRun) -> None:
    """Whatever it claims about an earlier step only decides how others are packed."""
    pooled.take(RANKS, 1, lambda _: replicas(1)(0))  # one copies all of another
    pooled.consolidate()
    pooled.take(RANKS, 2, replicas(2))
    assert pooled.is_whole()


def test_what_was_removed_before_the_commit_ends_the_plan(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    pooled.add(1, 1, replicas(1)(1))
    plan = pooled.plan(1, 1)
    receipts = [convert(job) for job in plan.jobs]
    next(pooled.store.glob("pool/step_1/*/float32/zarr.json")).unlink()
    with pytest.raises(SourceChanged, match="removed from the pool"):
        publish(plan, receipts)
    run(plan)  # again, from the beginning
    assert pooled.is_whole()


# What is in the pool is read like everything else: by export, by verify, and before files are deleted.


@pytest.mark.parametrize("what", ["c/0", "zarr.json"])
def test_verify_names_what_is_missing_in_the_pool(pooled: PooledRun, what: str) -> None:
    pooled.take(2, 1, replicas(1))
    path = min(pooled.commit(0, 1).record.pool)
    (pooled.store / path / what).unlink()
    damages = list(verify(open_store(str(pooled.store))))
    assert {damage.key for damage in damages if damage.path == f"{path}/{what}"} == {
        StepKey(0, 1),
        StepKey(1, 1),
    }


def test_files_are_read_back_from_the_pool_before_they_are_deleted(pooled: PooledRun) -> None:
    flushed: list[str] = []

    class Flushes(WrappedObjects):
        def flush(self, prefix: str) -> None:
            flushed.append(prefix)
            super().flush(prefix)

    pooled.take(RANKS, 1, replicas(1))
    committed = pooled.commit(0, 1)
    paths = sorted(pooled.dump.root.glob("rank_0/**/1/*.npy"))
    files = tuple(
        SourceFile(str(path.relative_to(pooled.dump.root)), path.stat().st_size, path.stat().st_mtime_ns)
        for path in paths
    )
    job = ReadBackJob(StepKey(0, 1), committed.fingerprint, str(pooled.dump.root), pooled.address, files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_back_task, "open_objects", lambda _: Flushes(pooled.objects))
        result = read_back(job)
    assert set(result.verdicts.tolist()) == {ReadBackVerdict.SAME}
    assert set(committed.record.pool) <= set(flushed)


# The whole service with the pool: a watcher that is restarted, and the command line.


def ingest_all(pooled: PooledRun, *, is_pooled: bool = True, **options: Any) -> Report:
    return ingest_service(pooled.dump, pooled.store, pool=is_pooled, grid=pooled.grid, **options)


def test_a_restarted_watcher_knows_what_is_committed_whatever_it_expects(pooled: PooledRun) -> None:
    for rank in range(RANKS):
        pooled.add(rank, 1, replicas(1)(rank))
    report = ingest_all(pooled)
    assert sorted(summary.key.step or 0 for summary in report.commits) == [1] * RANKS
    names = [pooled.commit(rank, 1).fingerprint for rank in range(RANKS)]
    assert all("-" in name for name in names)
    pooled.consolidate()  # now the view has the step itself
    for is_pooled in (True, False):
        assert ingest_all(pooled, is_pooled=is_pooled).commits == []
    assert [pooled.commit(rank, 1).fingerprint for rank in range(RANKS)] == names
    shutil.rmtree(pooled.store / "consolidated")
    assert ingest_all(pooled).commits == []
    assert pooled.is_whole()


def test_ranks_of_a_dump_share_from_the_first_step_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a view, and one more rank that shares nothing stays as it is."""
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    for step in range(2):
        for rank in range(RANKS):
            made.add(rank, step, replicas(step)(rank))
        made.add(RANKS, step, {f"activation{number}": 9000 + 10 * step + number for number in range(4)})
    assert len(ingest_all(made).commits) == 2 * (RANKS + 1)
    for step in range(2):
        pools = [tuple(made.commit(rank, step).record.pool) for rank in range(RANKS)]
        assert pools == [pools[0]] * RANKS
        assert {path.split("/")[2] for path in pools[0]} == {path.split("/")[0] for path in made.pool(step)}
        assert not made.commit(RANKS, step).record.pool
    assert made.is_whole()
    assert ingest_all(made).commits == []


@pytest.mark.dask
def test_the_command_line(tmp_path: Path, cluster: DaskCluster) -> None:
    """At real sizes, and by default: 5 MiB of weights that both ranks share."""
    made = MadeDump(tmp_path / "dump")
    store = tmp_path / "run.zarr"

    def add(step: int) -> None:
        weights = np.random.default_rng(step).normal(size=5 * 2**18).astype(np.float32)
        for rank in range(2):
            made.add(weights, tensor_name("Mul.net_weight-op0", time=1 + step), step=step, rank=rank)
            made.add(values_of(2 * step + rank), tensor_name(time=2 + step), step=step, rank=rank)

    add(0)
    ingest_directly(made.root, store)
    consolidate(store)
    add(1)
    done = cli_run("ingest", "dump", "--store", str(store), "--scheduler", cluster.address, cwd=tmp_path)
    assert done.code == 0, done.stderr
    arrays = [tuple(record_of(store, rank, 1)["pool"]) for rank in range(2)]
    assert arrays[0] == arrays[1]
    assert len(arrays[0]) == 1
    assert record_of(store, 0, 0)["pool"] == {}
    checker.check(store, made.root)


def record_of(store: Path, rank: int, step: int) -> dict[str, Any]:
    leaf = json.loads((store / f"rank_{rank}/step_{step}/zarr.json").read_text())
    return dict(leaf["attributes"]["dump_ingest"])


# What ranks share in one store: replicas, steps that are dumped again, partial steps, two hosts, S3.


def test_replicas_share_what_they_shared_before(pooled: PooledRun) -> None:
    alone = [pooled.commit(rank, 0).summary.stored_bytes for rank in range(RANKS)]
    pooled.take(RANKS, 1, replicas(1))
    commits = [pooled.commit(rank, 1) for rank in range(RANKS)]
    assert len({tuple(made.record.pool) for made in commits}) == 1
    assert pooled.commit(0, 0).record.pool == {}
    stored = sum(sum(pooled.objects.sizes(f"rank_{rank}/step_1").values()) for rank in range(RANKS))
    assert stored + sum(pooled.pool(1).values()) < 0.75 * sum(alone)
    assert pooled.is_whole()


def test_what_is_written_in_place_spoils_nothing(pooled: PooledRun) -> None:
    """Some outputs of an operator are dumped before it writes them, and others after; on each rank others."""
    names = [f"state{number}" for number in range(6)]

    def contents(step: int, late: int, seen: set[int]) -> dict[str, tuple[str, int]]:
        inputs = {f"{name}.in": ("input", 100 * step + n) for n, name in enumerate(names)}
        outputs = {f"{name}.out": ("output", 100 * (step + (n in seen)) + n) for n, name in enumerate(names)}
        return inputs | outputs | {"own.in": ("output", 100 * step + 50 + late)}

    for step, seen in ((0, [{0, 1}, {1, 2}]), (1, [{0, 2, 3}, {1, 4}]), (2, [set[int](), {5}])):
        for rank in range(2):
            _add_update(pooled, rank, step + 10, contents(step + 10, rank, seen[rank]))
            pooled.ingest(rank, step + 10)
        if not step:
            pooled.consolidate()
        else:
            arrays = [set(pooled.commit(rank, step + 10).record.pool) for rank in range(2)]
            assert arrays[0] & arrays[1], "the inputs are shared all the same"
    assert not list(verify(open_store(str(pooled.store))))


def _add_update(pooled: PooledRun, rank: int, step: int, contents: dict[str, tuple[str, int]]) -> None:
    for number, (name, (io, content)) in enumerate(contents.items()):
        file = tensor_name(f"Adam.net_{name.partition('.')[0]}", io, time=TIME + number)
        pooled.dump.add(values_of(content), file, step=step, rank=rank)


def test_a_tensor_that_differs_spoils_one_array(pooled: PooledRun) -> None:
    corrupted = replicas(1)(1) | {"weight3": 999}
    for rank in range(RANKS):
        pooled.add(rank, 1, corrupted if rank == 1 else replicas(1)(rank))
        pooled.ingest(rank, 1)
    arrays = [set(pooled.commit(rank, 1).record.pool) for rank in range(RANKS)]
    assert arrays[0] == arrays[2]
    assert len(arrays[0]) > 1
    assert len(arrays[0] - arrays[1]) == 1
    assert pooled.is_whole()
    # Then it is known, and spoils nothing.
    pooled.consolidate()
    pooled.take(RANKS, 2, replicas(2))
    arrays = [set(pooled.commit(rank, 2).record.pool) for rank in range(RANKS)]
    assert arrays[0] == arrays[1] == arrays[2]


def test_a_step_that_is_dumped_again_refers_to_what_it_holds_now(pooled: PooledRun) -> None:
    pooled.take(RANKS, 1, replicas(1))
    before = set(pooled.commit(0, 1).record.pool)
    for rank in range(RANKS):
        pooled.add(rank, 1, replicas(7)(rank))
    plan = pooled.plan(0, 1)
    run(plan)
    after = set(pooled.commit(0, 1).record.pool)
    assert not before & after
    assert set(pooled.commit(1, 1).record.pool) == before
    age(pooled.store)
    apply_gc(str(pooled.store), plan_gc(str(pooled.store)))
    assert {key.partition("/c/")[0].removesuffix("/zarr.json") for key in pooled.pool(1)} == {
        path.removeprefix("pool/step_1/") for path in before | after
    }
    pooled.ingest(1, 1)
    pooled.ingest(2, 1)
    age(pooled.store)
    apply_gc(str(pooled.store), plan_gc(str(pooled.store)))
    assert {f"pool/step_1/{key.partition('/')[0]}/float32" for key in pooled.pool(1)} == after
    assert pooled.is_whole()


def test_ranks_share_on_s3(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    small_pools(monkeypatch)
    pooled = PooledRun(tmp_path, store=f"{s3_bucket.url}/run.zarr")
    pooled.begin(2, replicas(0))
    pooled.take(2, 1, replicas(1))
    assert pooled.commit(0, 1).record.pool == pooled.commit(1, 1).record.pool != {}
    assert not list(verify(Catalog(pooled.objects)))
    assert not plan_gc(Catalog(pooled.objects)).actions
