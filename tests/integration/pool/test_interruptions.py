"""Ranks that share tensors, whoever is killed, races with another, or forges what it dumps."""

import numpy as np
import pytest

from ingest.api import open_store
from tests.pools import RANKS, PooledRun, replicas, run, values_of
from tests.xxh3_forgery import forged
from workers.errors import SourceChanged
from workers.tasks.convert import convert
from workers.tasks.publish import publish


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
