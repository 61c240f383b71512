"""What ranks share in one store: replicas, steps that are dumped again, partial steps, two hosts, S3."""

from pathlib import Path

import pytest

from ingest.api import apply_gc, open_store, plan_gc
from ingest.reader.catalog import Catalog
from ingest.reader.verifying import verify
from tests.gc_stores import age
from tests.pools import RANKS, TIME, PooledRun, replicas, run, small_pools, values_of
from tests.servers.ceph import S3Bucket
from tests.stores import tensor_name


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
