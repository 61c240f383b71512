"""Behaviour of the modules below."""

import hashlib
import os
from contextlib import suppress
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

KEY = StepKey(3, 7)
NAME = "0123456789abcdef" * 4


def test_a_path_tells_step_and_name() -> None:
    path = pool.array_path(KEY, NAME, "float32_big_endian")
    assert path == f"pool/step_7/{NAME}/float32_big_endian"
    assert pool.is_pooled(path)
    assert (pool.step_of(path), pool.name_in(path)) == (7, NAME)
    pool.refuse_foreign(KEY, path)


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


@pytest.mark.parametrize(
    "other",
    [
        ArraySpec("tensors/float32", "float32", 4, big_endian=False, chunk=128, chunks_per_shard=8),
        ArraySpec("tensors/int32", "int32", 4, big_endian=False, chunk=256, chunks_per_shard=4),
        ArraySpec("tensors/float32_big_endian", "float32", 4, big_endian=True, chunk=256, chunks_per_shard=4),
    ],
)
def test_what_is_encoded_otherwise_has_another_name(objects: ObjectStore, other: ArraySpec) -> None:
    names = {pool.name_in(pack(objects, payload(1), spec=spec).arrays[0].path) for spec in (SPEC, other)}
    assert len(names) == 2


def test_payloads_that_do_not_fit_begin_another_array(objects: ObjectStore) -> None:
    packer = pack(objects, payload(1, 1000), payload(2, 20), payload(3, 1000), payload(4, 24))
    lengths = [packed.array.node["shape"] for packed in packer.arrays]
    assert lengths == [[1020], [1024]]
    assert packer.number == 2


def test_an_error_leaves_nothing(objects: ObjectStore) -> None:
    with suppress(OSError), PoolPacker(SPEC, PACKED_KEY, objects) as packer:
        packer.append(payload(1))
        raise OSError
    assert objects.listed("pool") == {}


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
