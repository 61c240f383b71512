"""Ranks that share tensors, in one store: whatever is killed, raced, forged, dumped again or removed."""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import DumpStore, GcPolicy, apply_gc, consolidate, open_store, plan_gc
from ingest.layouts.detect import find_dump
from ingest.planning import plan as planning
from ingest.planning.inspection import inspect
from ingest.reader.catalog import Catalog
from ingest.reader.verify import verify
from ingest.service.planner import Planner
from ingest.service.report import Report
from ingest.service.shared_tensors import SharedTensors
from tests import checker
from tests.cli import run as cli_run
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.pools import PooledRun, replicas, run, small_pools, values_of
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.services import ingest as ingest_service
from tests.wrapped_objects import WrappedObjects
from workers.arrays.digest import digest
from workers.errors import SourceChanged, TensorsRemoved
from workers.model import SourceFile, StepKey
from workers.store import commit, pool
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.store.pieces import NewObject
from workers.store.record import WithoutTensors
from workers.tasks import convert as convert_task
from workers.tasks import publish as publish_task
from workers.tasks import read_back as read_back_task
from workers.tasks.convert import convert
from workers.tasks.publish import publish
from workers.tasks.read_back import ReadBackJob, ReadBackVerdict, read_back

RANKS = 3
OLD_S = 10 * 86400.0


class Died(BaseException):
    """The process was killed: nothing that catches errors may catch it."""


class Mortal(WrappedObjects):
    """Dies after a number of changes of the store."""

    def __init__(self, inner: ObjectStore, changes: int) -> None:
        super().__init__(inner)
        self.left = changes

    def _change(self) -> None:
        if not self.left:
            raise Died
        self.left -= 1

    def put(self, key: str, data: bytes | bytearray) -> None:
        self._change()
        super().put(key, data)

    def create(self, key: str) -> NewObject:
        self._change()
        return super().create(key)

    def delete(self, key: str) -> None:
        self._change()
        super().delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledRun:
    """A run of three ranks, of which step 0 is consolidated."""
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    made.begin(RANKS, replicas(0))
    return made


def make_old(store: Path, below: str = "pool") -> None:
    """Let all objects below a prefix be written long ago."""
    for path in (store / below).rglob("*"):
        at = path.stat().st_mtime - OLD_S
        os.utime(path, (at, at))


def open_as(monkeypatch: pytest.MonkeyPatch, objects: ObjectStore) -> None:
    """Let tasks of this process have the store as `objects`."""
    for module in (convert_task, publish_task):
        monkeypatch.setattr(module, "open_objects", lambda _: objects)


def is_whole(pooled: PooledRun) -> bool:
    """Return whether verify, and the checker that knows only the documentation, find nothing wrong."""
    checker.check(pooled.store, pooled.dump.root)
    return not list(verify(open_store(str(pooled.store))))


def test_replicas_share_what_they_shared_before(pooled: PooledRun) -> None:
    alone = [pooled.commit(rank, 0).summary.stored_bytes for rank in range(RANKS)]
    pooled.take(RANKS, 1, replicas(1))
    commits = [pooled.commit(rank, 1) for rank in range(RANKS)]
    assert len({tuple(made.record.pool) for made in commits}) == 1
    assert commits[0].record.format_version == 5
    assert pooled.commit(0, 0).record.format_version == 2
    stored = sum(sum(pooled.objects.sizes(f"rank_{rank}/step_1").values()) for rank in range(RANKS))
    assert stored + sum(pooled.pool(1).values()) < 0.75 * sum(alone)
    assert is_whole(pooled)


def test_a_tensor_that_differs_spoils_one_array(pooled: PooledRun) -> None:
    corrupted = replicas(1)(1) | {"weight3": 999}
    for rank in range(RANKS):
        pooled.add(rank, 1, corrupted if rank == 1 else replicas(1)(rank))
        pooled.ingest(rank, 1)
    arrays = [set(pooled.commit(rank, 1).record.pool) for rank in range(RANKS)]
    assert arrays[0] == arrays[2]
    assert len(arrays[0]) > 1
    assert len(arrays[0] - arrays[1]) == 1
    assert is_whole(pooled)
    # Then it is known, and spoils nothing.
    pooled.consolidate()
    pooled.take(RANKS, 2, replicas(2))
    arrays = [set(pooled.commit(rank, 2).record.pool) for rank in range(RANKS)]
    assert arrays[0] == arrays[1] == arrays[2]


def test_a_rank_is_killed_between_any_two_writes(pooled: PooledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the killed rank left, others share or write again, and nobody sees half a step."""
    for changes in range(100):
        step = changes + 1
        second_goes_on = bool(changes % 2)
        for path in pooled.dump.root.glob(f"rank_*/*/*/{step - 1}"):
            shutil.rmtree(path)
        for rank in range(2):
            pooled.add(rank, step, replicas(step)(rank))
        first, second = pooled.plan(0, step), pooled.plan(1, step)
        with monkeypatch.context() as patched:
            open_as(patched, Mortal(open_objects(pooled.address), changes))
            try:
                run(first)
                break
            except Died:
                pass
        assert commit.read(pooled.objects, StepKey(0, step)) is None
        if second_goes_on:
            run(second)
            assert not list(verify(open_store(str(pooled.store)), [StepKey(1, step)]))
        run(first)
        if not second_goes_on:
            run(second)
        assert set(pooled.commit(0, step).record.pool) == set(pooled.commit(1, step).record.pool)
    assert changes > 15
    assert not list(verify(open_store(str(pooled.store))))


def test_ranks_race(pooled: PooledRun) -> None:
    for rank in range(RANKS):
        pooled.add(rank, 1, replicas(1)(rank))
    plans = [pooled.plan(rank, 1) for rank in range(RANKS)] * 2  # each by two workers
    threads = [threading.Thread(target=run, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(pooled.commit(rank, 1).record.pool) for rank in range(RANKS)}) == 1
    assert is_whole(pooled)


def test_a_hostile_rank_gets_nothing_of_its_own_into_others(
    pooled: PooledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors have the XXH3 digests of those of rank 0, in the view and in the index, and other bytes.

    That such bytes can be made is assumed here: a digest that calls two tensors the same stands for it.
    """
    forged, genuine = values_of(999).tobytes(), values_of(1003).tobytes()
    monkeypatch.setattr(
        convert_task, "digest_of", lambda piece: digest(genuine if bytes(piece) == forged else piece)
    )
    hostile = replicas(1)(0) | {"weight3": 999}
    pooled.add(0, 1, hostile)  # it comes first
    pooled.add(1, 1, replicas(1)(1))
    pooled.ingest(0, 1)
    pooled.ingest(1, 1)
    monkeypatch.undo()
    store = open_store(str(pooled.store))
    for number, tensor in enumerate(store.tensors(rank=1, step=1, name="Add.net_weight*")):
        np.testing.assert_array_equal(tensor.read(), values_of(1000 + number))
    assert not list(verify(store, [StepKey(1, 1)]))
    # It could take over nothing of theirs either: what it claims is checked against its own bytes.
    assert list(verify(store, [StepKey(0, 1)]))


def test_a_hostile_rank_pretends_to_share(pooled: PooledRun) -> None:
    """Whatever it claims about an earlier step only decides how others are packed."""
    pooled.take(RANKS, 1, lambda _: replicas(1)(0))  # one copies all of another
    pooled.consolidate()
    pooled.take(RANKS, 2, replicas(2))
    assert is_whole(pooled)


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
    make_old(pooled.store, "")
    apply_gc(str(pooled.store), plan_gc(str(pooled.store)))
    assert {key.partition("/c/")[0].removesuffix("/zarr.json") for key in pooled.pool(1)} == {
        path.removeprefix("pool/step_1/") for path in before | after
    }
    pooled.ingest(1, 1)
    pooled.ingest(2, 1)
    make_old(pooled.store, "")
    apply_gc(str(pooled.store), plan_gc(str(pooled.store)))
    assert {f"pool/step_1/{key.partition('/')[0]}/float32" for key in pooled.pool(1)} == after
    assert is_whole(pooled)


def test_a_late_file_makes_a_generation_that_shares_as_before(pooled: PooledRun) -> None:
    pooled.take(RANKS, 1, replicas(1))
    before = pooled.commit(0, 1)
    pooled.add(0, 1, replicas(1)(0) | {"late": 77})
    pooled.ingest(0, 1)
    after = pooled.commit(0, 1)
    assert after.fingerprint != before.fingerprint
    assert after.record.previous == (before.fingerprint,)
    assert set(after.record.pool) == set(before.record.pool)
    assert is_whole(pooled)


def test_a_partial_step_shares_what_it_has(pooled: PooledRun) -> None:
    for rank in range(RANKS):
        pooled.add(rank, 1, replicas(1)(rank))
    broken = pooled.dump.add(b"\x93NUMPY and no more", step=1, rank=0)
    for rank in range(RANKS):
        pooled.ingest(rank, 1)
    assert pooled.commit(0, 1).summary.status == "partial"
    assert set(pooled.commit(0, 1).record.pool) == set(pooled.commit(1, 1).record.pool)
    checker.check(
        pooled.store, pooled.dump.root, partial=frozenset([str(broken.relative_to(pooled.dump.root))])
    )


def test_the_name_tells_what_it_would_be_without_the_pool(pooled: PooledRun) -> None:
    """A restarted watcher lists the same files, and knows that they are committed, whatever it expects."""
    pooled.take(1, 1, replicas(1))
    plain = pooled.plan(0, 1, pooled=False).fingerprint
    pooled_name = pooled.commit(0, 1).fingerprint
    assert re.fullmatch(r"[0-9a-f]{32}-[0-9a-f]{16}", pooled_name)
    assert pool.without_pool(pooled_name) == plain
    assert pool.without_pool(plain) == plain
    assert planning.times_rewritten(plain, pooled_name) == 0
    again = planning.rewritten(plain, 2)
    assert planning.times_rewritten(pooled_name, f"{again}-{'0' * 16}") == 2


# -- gc


def removing(store: Path, policy: GcPolicy | None = None) -> Callable[[], object]:
    return lambda: apply_gc(str(store), plan_gc(str(store), policy))


def test_gc_counts_over_ranks(pooled: PooledRun) -> None:
    pooled.take(RANKS, 1, replicas(1))
    shared = pooled.pool(1)
    make_old(pooled.store, "")
    removing(pooled.store, GcPolicy(ranks=(0, 1), steps=(1,)))()
    removing(pooled.store)()
    assert pooled.pool(1) == shared  # rank 2 refers to it
    assert not list(verify(open_store(str(pooled.store))))
    removing(pooled.store, GcPolicy(ranks=(2,), steps=(1,)))()
    assert pooled.pool(1) == shared  # only what was chosen
    plan = plan_gc(str(pooled.store))
    assert {action.what for action in plan.actions} == {"pool"}
    assert plan.objects == len(shared)
    apply_gc(str(pooled.store), plan)
    assert pooled.pool(1) == {}
    assert not (pooled.store / "pool" / "step_1").exists() or not list(
        (pooled.store / "pool/step_1").iterdir()
    )


def test_gc_removes_a_step_and_its_pool_at_once(pooled: PooledRun) -> None:
    pooled.take(RANKS, 1, replicas(1))
    pooled.consolidate()
    pooled.take(RANKS, 2, replicas(2))
    make_old(pooled.store, "")
    removing(pooled.store, GcPolicy(keep_last=1))()
    assert pooled.pool(1) == {}
    assert pooled.pool(2) != {}
    assert not list(verify(open_store(str(pooled.store))))


def test_gc_leaves_what_is_young_whatever_the_grace_period(pooled: PooledRun) -> None:
    """A rank may have found it, and be about to commit."""
    pooled.add(0, 1, replicas(1)(0))
    convert_all = [convert(job) for job in pooled.plan(0, 1).jobs]
    assert convert_all
    make_old(pooled.store, "rank_0")
    plan = plan_gc(str(pooled.store), GcPolicy(grace_s=0))
    assert not [action for action in plan.actions if action.what == "pool"]
    assert any("pools" in note for note in plan.notes)


def test_gc_leaves_the_pool_of_a_step_that_somebody_writes(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    removing(pooled.store, GcPolicy(ranks=(0,), steps=(1,)))()
    make_old(pooled.store)
    pooled.add(1, 1, replicas(1)(1))
    for job in pooled.plan(1, 1).jobs:
        convert(job)  # and is not published yet
    make_old(pooled.store)
    assert not [action for action in plan_gc(str(pooled.store)).actions if action.what == "pool"]


def test_gc_leaves_the_pool_of_a_step_with_a_damaged_commit(pooled: PooledRun) -> None:
    pooled.take(2, 1, replicas(1))
    make_old(pooled.store, "")
    (pooled.store / "rank_0/step_1/zarr.json").write_text("{}")
    make_old(pooled.store, "rank_0")
    removing(pooled.store, GcPolicy(ranks=(1,), steps=(1,)))()
    assert not [action for action in plan_gc(str(pooled.store)).actions if action.what == "pool"]


def test_a_plan_that_is_out_of_date_removes_nothing_that_is_referred_to(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    removing(pooled.store, GcPolicy(ranks=(0,), steps=(1,)))()
    make_old(pooled.store, "")
    plan = plan_gc(str(pooled.store))
    assert [action for action in plan.actions if action.what == "pool"]
    pooled.add(1, 1, replicas(1)(1))
    pooled.ingest(1, 1)
    make_old(pooled.store)  # even if it were not young again
    report = apply_gc(str(pooled.store), plan)
    assert {done.left for done in report.left} == {"rank 1 step 1 refers to it"}
    assert not list(verify(open_store(str(pooled.store)), [StepKey(1, 1)]))


def test_an_old_array_is_made_young_by_whoever_finds_it(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    make_old(pooled.store)
    old = {path: path.stat().st_mtime for path in pooled.store.glob("pool/**/*") if path.is_file()}
    pooled.add(1, 1, replicas(1)(1))
    pooled.ingest(1, 1)
    assert all(path.stat().st_mtime > at + OLD_S / 2 for path, at in old.items())


def test_what_was_removed_before_the_commit_ends_the_plan(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    pooled.add(1, 1, replicas(1)(1))
    plan = pooled.plan(1, 1)
    receipts = [convert(job) for job in plan.jobs]
    next(pooled.store.glob("pool/step_1/*/float32/zarr.json")).unlink()
    with pytest.raises(SourceChanged, match="removed from the pool"):
        publish(plan, receipts)
    run(plan)  # again, from the beginning
    assert is_whole(pooled)


def test_gc_is_killed_between_any_two_deletions(pooled: PooledRun) -> None:
    """What it leaves is removed by the next one; whoever comes meanwhile takes nothing that is half gone."""
    for changes in range(200):
        step = changes + 1
        for path in pooled.dump.root.glob(f"rank_*/*/*/{step - 1}"):
            shutil.rmtree(path)
        pooled.take(2, step, replicas(step))
        make_old(pooled.store, "")
        for rank in range(2):
            removing(pooled.store, GcPolicy(ranks=(rank,), steps=(step,)))()
        make_old(pooled.store, "pool")
        objects = Mortal(open_objects(pooled.address), changes)
        try:
            apply_gc(DumpStore(objects), plan_gc(str(pooled.store)))
            break
        except Died:
            pass
        pooled.ingest(1, step)
        assert not list(verify(open_store(str(pooled.store)), [StepKey(1, step)]))
    assert changes > 4
    assert pooled.pool(step) == {}


def test_tensors_that_one_rank_drops_stay_for_the_others(pooled: PooledRun) -> None:
    pooled.take(2, 1, replicas(1))
    make_old(pooled.store, "")
    committed = pooled.commit(0, 1)
    before = committed.summary
    without = WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "test")
    dropped = commit.drop_tensors(pooled.objects, committed, without)
    assert (dropped.record.pool, dropped.record.format_version) == ({}, 4)
    assert 0 < dropped.summary.stored_bytes < before.stored_bytes / 4
    removing(pooled.store)()
    assert not list(verify(open_store(str(pooled.store))))
    (tensor, *_) = open_store(str(pooled.store)).tensors(rank=1, step=1, name="Add.net_weight0*")
    np.testing.assert_array_equal(tensor.read(), values_of(1000))
    with pytest.raises(TensorsRemoved):
        open_store(str(pooled.store)).tensors(rank=0, step=1, name="Add.net_weight0*")[0].read()


# -- reading


def test_export_returns_the_files(pooled: PooledRun, tmp_path: Path) -> None:
    pooled.take(2, 1, replicas(1))
    for step in open_store(str(pooled.store)).select():
        step.export(tmp_path / "out")
    for path in pooled.dump.root.rglob("*.npy"):
        assert (tmp_path / "out" / path.relative_to(pooled.dump.root)).read_bytes() == path.read_bytes()


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


def test_an_older_version_refuses_a_step_that_uses_the_pool(pooled: PooledRun) -> None:
    pooled.take(1, 1, replicas(1))
    record = (pooled.store / "rank_0/step_1/zarr.json").read_text()
    assert '"format_version":5' in record
    assert '"format_version":5' not in (pooled.store / "rank_0/step_0/zarr.json").read_text()


# -- the whole service


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
    assert is_whole(pooled)


def test_what_was_removed_on_purpose_stays_removed(pooled: PooledRun) -> None:
    pooled.take(RANKS, 1, replicas(1))
    removing(pooled.store, GcPolicy(ranks=(0,), steps=(1,)))()
    assert ingest_all(pooled).commits == []
    assert commit.read(pooled.objects, StepKey(0, 1)) is None


def test_a_watcher_names_a_step_whose_pool_was_damaged(pooled: PooledRun) -> None:
    pooled.take(RANKS, 1, replicas(1))
    path = min(pooled.commit(0, 1).record.pool)
    (pooled.store / path / "c" / "0").unlink()
    damages = ingest_all(pooled).damaged
    assert {damage.key for damage in damages} == {StepKey(rank, 1) for rank in range(RANKS)}
    assert all(path in str(damage) for damage in damages)


def test_without_tensors_nothing_is_pooled(pooled: PooledRun) -> None:
    pooled.add(0, 1, replicas(1)(0))
    assert pooled.plan(0, 1).fingerprint != pooled.plan(0, 1, pooled=False).fingerprint
    key = StepKey(0, 1)
    tree = find_dump(pooled.dump.root)
    (listing,) = (listing for listing in tree.scan({}).listings if listing.key == key)
    inspected = inspect(tree.root, listing, tree.describe(listing))
    planner = Planner(tree.root, pooled.address, pooled.grid, shared=SharedTensors(pooled.objects))
    assert any(segment.pooled for job in planner.plan(inspected).jobs for segment in job.segments)
    without = planner.plan(inspected, leave_out_tensors="full")
    assert not any(segment.pooled for job in without.jobs for segment in job.segments)
    run(without)
    assert not list(verify(open_store(str(pooled.store))))


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
    job = ReadBackJob(StepKey(0, 1), 0, committed.fingerprint, str(pooled.dump.root), pooled.address, files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_back_task, "open_objects", lambda _: Flushes(pooled.objects))
        result = read_back(job)
    assert set(result.verdicts.tolist()) == {ReadBackVerdict.SAME}
    assert set(committed.record.pool) <= set(flushed)


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


# -- the command line


@pytest.mark.dask
def test_the_command_line(tmp_path: Path, cluster: DaskCluster) -> None:
    """At real sizes: 5 MiB of weights that both ranks share."""
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
    done = cli_run(
        "ingest", "dump", "--store", str(store), "--pool", "--scheduler", cluster.address, cwd=tmp_path
    )
    assert done.code == 0, done.stderr
    arrays = [tuple(record_of(store, rank, 1)["pool"]) for rank in range(2)]
    assert arrays[0] == arrays[1]
    assert len(arrays[0]) == 1
    assert "pool" not in record_of(store, 0, 0)
    checker.check(store, made.root)


def record_of(store: Path, rank: int, step: int) -> dict[str, Any]:
    leaf = json.loads((store / f"rank_{rank}/step_{step}/zarr.json").read_text())
    return dict(leaf["attributes"]["dump_ingest"])
