"""Tensors of a committed step are encoded again: the same elements in fewer bytes, and never half of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.api import GcPolicy, open_store
from tests.gc_stores import age, gc
from tests.pools import PooledRun, replicas, small_pools
from workers.model import StepKey
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.objects import Gathered
from workers.store.packed import recompressing
from workers.store.packed.chunks import BY_BLOSC, QUICK
from workers.store.packed.recompressing import is_dense, recompress
from workers.store.packed.shards import ShardPacker

KEY = StepKey(0, 1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledRun:
    """Two ranks and steps; in the second one they share tensors, and each has one of its own."""
    small_pools(monkeypatch)
    monkeypatch.setattr(recompressing, "_LEAST_SAVING", -1.0)  # the tensors are too small to save much
    made = PooledRun(tmp_path)
    made.begin(2, replicas(0))
    made.take(2, 1, replicas(1))
    return made


def values(run: PooledRun) -> dict[str, bytes]:
    return {
        tensor.name: tensor.read().tobytes() for tensor in open_store(str(run.store)).tensors(rank=0, step=1)
    }


def test_a_step_has_the_same_elements_in_another_generation(run: PooledRun) -> None:
    before, elements, in_pool = run.commit(0, 1), values(run), run.pool(1)
    done = recompress(run.objects, KEY)
    after = run.commit(0, 1)
    assert (done.left, is_dense(before), is_dense(after)) == ("", False, True)
    assert after.record.previous[-1] == before.fingerprint
    assert after.record.pool == before.record.pool
    assert run.pool(1) == in_pool
    saved = done.before_nbytes - done.after_nbytes
    assert before.summary.stored_bytes - after.summary.stored_bytes == saved
    spec = metadata.packed_spec("tensors/float32", after.nodes["tensors/float32"])
    assert spec.dense in ("shuffle", "bitshuffle")
    assert spec.sparse == BY_BLOSC
    assert metadata.packed_spec("tensors/float32", before.nodes["tensors/float32"]).sparse == QUICK
    assert values(run) == elements
    assert run.is_whole()
    # A watcher takes it for what it has committed.
    assert run.plan(0, 1).fingerprint.partition("-")[0] == after.fingerprint.partition("-")[0]
    assert recompress(run.objects, KEY).left == "it is dense"
    age(run.store)
    gc(run.store, GcPolicy())
    assert not (run.store / before.prefix).exists()
    assert values(run) == elements
    assert run.is_whole()


def test_a_damaged_step_is_left(run: PooledRun) -> None:
    (shard,) = (run.store / run.commit(0, 1).prefix).glob("tensors/float32/c/0")
    shard.write_bytes(shard.read_bytes()[:-1])
    done = recompress(run.objects, KEY)
    assert done.is_damaged
    assert "crc32c" in done.left


@pytest.mark.parametrize(("dense", "most"), [("shuffle", 0.90), ("bitshuffle", 0.95)])
def test_dense_codecs_take_less_room(dense: str, most: float) -> None:
    """By the figures of docs/design/005: normal values of real size, in float32."""
    data = memoryview(np.random.default_rng(0).standard_normal(2**18, np.float32).tobytes())

    def stored(spec: ArraySpec) -> int:
        written: list[bytes] = []
        with ShardPacker(spec, 0, lambda _: Gathered(written.append)) as packer:
            packer.append(data)
        return sum(map(len, written))

    spec = ArraySpec("tensors/float32", "float32", 4, big_endian=False, chunk=2**18, chunks_per_shard=1)
    assert stored(replace(spec, dense=dense)) <= most * len(data)
    assert stored(replace(spec, dense=dense)) < stored(spec)
