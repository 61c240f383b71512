"""What `gc` removes from the pool, and what it leaves."""

import numpy as np
import pytest

from ingest.api import GcPolicy, apply_gc, open_store, plan_gc
from ingest.reader.verifying import verify
from tests.gc_stores import age, gc
from tests.pools import RANKS, PooledRun, replicas, values_of
from workers.errors import TensorsRemoved
from workers.model import StepKey
from workers.store import commit
from workers.store.record import WithoutTensors
from workers.tasks.convert import convert


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
