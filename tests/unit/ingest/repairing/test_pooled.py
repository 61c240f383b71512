"""Damaged arrays in the pool are made again from what any rank has, if that is what their names say."""

import shutil
from pathlib import Path

import pytest

from ingest.api import open_store, repair
from ingest.reader.verifying import verify
from tests import checker
from tests.pools import GRID, PooledRun, replicas, small_pools
from workers.model import StepKey


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledRun:
    """A run of two ranks whose step 1 uses the pool."""
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    made.begin(2, replicas(0))
    made.take(2, 1, replicas(1))
    return made


def shard_of(pooled: PooledRun) -> Path:
    """Return the larger shard of those that both ranks refer to."""
    path, _ = max(pooled.commit(0, 1).record.pool.items(), key=lambda item: item[1].nbytes)
    return pooled.store / path / "c" / "0"


def damages(pooled: PooledRun) -> list[str]:
    return list(map(str, verify(open_store(str(pooled.store)))))


@pytest.mark.parametrize("damage", ["missing", "flipped", "metadata"])
def test_an_array_is_made_again_from_the_dump(pooled: PooledRun, damage: str) -> None:
    shard = shard_of(pooled)
    before = checker.objects(pooled.store)
    if damage == "metadata":
        (shard.parents[1] / "zarr.json").write_text("{}")
    elif damage == "missing":
        shard.unlink()
    else:
        data = bytearray(shard.read_bytes())
        data[100] ^= 1
        shard.write_bytes(data)
    assert damages(pooled)
    report = repair(pooled.store, apply=True, grid=GRID)
    assert report.is_clean
    assert not damages(pooled)
    assert checker.objects(pooled.store) == before


def test_a_forged_dump_does_not_get_into_the_array(
    pooled: PooledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors have the right XXH3 digests, which is not enough for what other ranks read."""
    shard = shard_of(pooled)
    before = shard.read_bytes()
    shard.unlink()
    for path in pooled.dump.root.glob("rank_0/**/1/*weight*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    monkeypatch.setattr("ingest.repairing.work.is_same", lambda *_: True)
    repair(pooled.store, apply=True, grid=GRID, rank=0, step=1)
    monkeypatch.undo()
    assert not shard.exists()
    # What rank 0 has is committed as another array, to which rank 1 does not refer.
    forged = set(pooled.commit(0, 1).record.pool) - set(pooled.commit(1, 1).record.pool)
    assert len(forged) == 1
    repair(pooled.store, apply=True, grid=GRID, rank=1, step=1)
    assert shard.read_bytes() == before


def test_what_is_found_nowhere_is_lost_for_one_rank_at_a_time(pooled: PooledRun) -> None:
    lost = sorted(pooled.dump.root.glob("rank_*/**/1/*"))
    for path in lost:
        path.unlink()
    shard_of(pooled).unlink()
    assert not repair(pooled.store, apply=True, grid=GRID, rank=0, step=1).is_clean
    report = repair(pooled.store, apply=True, accept_loss=True, grid=GRID, rank=0, step=1)
    assert report.repairs[0].lost
    assert not list(verify(open_store(str(pooled.store)), [StepKey(0, 1)]))
    after = pooled.commit(0, 1)
    assert after.summary.status == "partial"
    assert set(after.record.pool) < set(pooled.commit(1, 1).record.pool)


def test_a_commit_is_made_again_from_its_objects(pooled: PooledRun) -> None:
    leaf = pooled.store / "rank_0/step_1/zarr.json"
    before = pooled.commit(0, 1)
    leaf.write_text(leaf.read_text()[:-200])
    shutil.rmtree(pooled.dump.root)
    assert repair(pooled.store, apply=True, grid=GRID, rank=0, step=1).is_clean
    after = pooled.commit(0, 1)
    assert (after.fingerprint, after.record.pool) == (before.fingerprint, before.record.pool)
    assert after.summary.stored_bytes == before.summary.stored_bytes
    assert not damages(pooled)
