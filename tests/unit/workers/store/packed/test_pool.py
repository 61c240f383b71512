"""Chunks that are shared and packed again."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.api import GcPolicy, open_store
from tests import checker
from tests.gc_stores import age, gc
from tests.pools import PooledRun, replicas, small_pools
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
from workers.model import StepKey
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.objects import Gathered, ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.packed import pool, pool_packer, recompressing
from workers.store.packed.chunks import BY_BLOSC, QUICK
from workers.store.packed.pool_packer import PoolPacker
from workers.store.packed.recompressing import is_dense, recompress
from workers.store.packed.shards import ShardPacker, ShardReader

# Behaviour of the modules below.


def test_what_is_found_has_hours_until_gc_may_remove_it() -> None:
    assert pool.GRACE_S - pool.REUSE_S - pool.MAX_SKEW_S > 4 * 3600


PACKED_KEY = StepKey(0, 5)
#: An array holds at most 1024 elements, in chunks of 256.
SPEC = ArraySpec("tensors/float32", "float32", 4, big_endian=False, chunk=256, chunks_per_shard=4)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(resolve(str(tmp_path / "run.zarr")))


def payload(seed: int, size: int = 300) -> memoryview:
    return memoryview(np.random.default_rng(seed).normal(size=size).astype("<f4").tobytes())


def pack(
    objects: ObjectStore, *payloads: memoryview, spec: ArraySpec = SPEC, key: StepKey = PACKED_KEY
) -> PoolPacker:
    with PoolPacker(spec, key, objects) as packer:
        for elements in payloads:
            packer.make_room(len(elements))
            packer.append(elements)
    return packer


def test_the_same_payloads_have_the_same_name(objects: ObjectStore) -> None:
    (first,) = pack(objects, payload(1), payload(2)).arrays
    (again,) = pack(objects, payload(1), payload(2), key=StepKey(9, 5)).arrays
    assert (first.path, first.array) == (again.path, again.array)
    reader = ShardReader(objects, first.path, metadata.packed_spec(first.path, first.array.node))
    assert reader.read(0, 600) == bytes(payload(1)) + bytes(payload(2))


def test_the_name_is_the_digest_of_metadata_and_elements(objects: ObjectStore) -> None:
    (packed,) = pack(objects, payload(1)).arrays
    node = objects.get(f"{packed.path}/zarr.json")
    assert node is not None
    elements = hashlib.sha256(payload(1)).digest()
    assert pool.name_in(packed.path) == hashlib.sha256(elements + node).hexdigest()


def test_elements_are_held_in_blocks(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads and chunks may begin and end anywhere in them."""
    payloads = [payload(seed, size) for seed, size in enumerate((300, 1, 250, 473))]
    (whole,) = pack(objects, *payloads).arrays
    before = checker.objects(Path(objects.address.url))
    for nbytes in (4096, 1024, 1000, 1):
        monkeypatch.setattr(pool_packer, "_BLOCK_NBYTES", nbytes)
        for key in objects.listed("pool"):
            objects.delete(f"pool/{key}")
        (in_blocks,) = pack(objects, *payloads).arrays
        assert (in_blocks.path, in_blocks.array) == (whole.path, whole.array)
        assert checker.objects(Path(objects.address.url)) == before


def test_metadata_comes_last(objects: ObjectStore) -> None:
    class Fails(WrappedObjects):
        def put(self, key: str, data: bytes | bytearray) -> None:
            if key.endswith("zarr.json"):
                raise StoreUnavailable("gone")
            super().put(key, data)

    with pytest.raises(StoreUnavailable):
        pack(Fails(objects), payload(1))
    (left,) = objects.listed("pool")
    assert left.endswith("/c/0")
    (packed,) = pack(objects, payload(1)).arrays
    assert objects.get(f"{packed.path}/zarr.json")  # a shard without metadata is not an array


@pytest.mark.parametrize(
    ("age_s", "is_new"),
    [
        (0.0, False),
        (pool.REUSE_S - 60, False),
        (pool.REUSE_S + 60, True),
        (-pool.MAX_SKEW_S + 60, False),
        (-pool.MAX_SKEW_S - 60, True),  # the clock of this host is wrong: nothing is known of its age
    ],
)
def test_only_what_is_young_is_taken_as_it_is(objects: ObjectStore, age_s: float, *, is_new: bool) -> None:
    (first,) = pack(objects, payload(1)).arrays
    shard = Path(objects.address.url) / first.path / "c" / "0"
    at = shard.stat().st_mtime - age_s
    for path in (shard, shard.parents[1] / "zarr.json"):
        os.utime(path, (at, at))
    before = shard.stat().st_ino
    (again,) = pack(objects, payload(1)).arrays
    assert (again.path, again.array) == (first.path, first.array)
    assert (shard.stat().st_ino != before) == is_new


# Tensors of a committed step are encoded again: the same elements in fewer bytes, and never half of them.


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
