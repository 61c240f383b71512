"""Behaviour of the modules below."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from tests import checker
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
from workers.model import StepKey
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.packed import pool, pool_packer
from workers.store.packed.pool_packer import PoolPacker
from workers.store.packed.shards import ShardReader


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
