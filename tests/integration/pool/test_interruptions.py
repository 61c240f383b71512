"""Ranks that share tensors, whoever is killed, races with another, or forges what it dumps."""

import shutil

import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.verifying import verify
from tests.gc_stores import Fragile, Killed
from tests.pools import RANKS, PooledRun, replicas, run, values_of
from tests.xxh3_forgery import forged
from workers.errors import SourceChanged
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.tasks import convert as convert_task
from workers.tasks import publish as publish_task
from workers.tasks.convert import convert
from workers.tasks.publish import publish


def open_as(monkeypatch: pytest.MonkeyPatch, objects: ObjectStore) -> None:
    """Let tasks of this process have the store as `objects`."""
    for module in (convert_task, publish_task):
        monkeypatch.setattr(module, "open_objects", lambda _: objects)


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
            open_as(patched, Fragile(open_objects(pooled.address), changes))
            try:
                run(first)
                break
            except Killed:
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
