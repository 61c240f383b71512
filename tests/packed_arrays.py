"""Make packed arrays of random elements, for tests of the code that writes and reads shards."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workers.arrays.dtypes import from_npy_descr
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.opening import connect, resolve
from workers.store.packed.shards import ShardPacker


def spec_of(descr: str, *, chunk: int = 8, chunks_per_shard: int = 4) -> ArraySpec:
    element = from_npy_descr(descr)
    name = f"tensors/{element.array}"
    return ArraySpec(
        name, element.stored_name, element.stored_itemsize, element.big_endian, chunk, chunks_per_shard
    )


def pack(root: Path, spec: ArraySpec, payloads: Sequence[bytes], first_shard: int = 0) -> list[int]:
    """Write an array with its metadata, and return the position of the first element of each payload."""
    objects = connect(resolve(str(root)))
    starts = []
    with ShardPacker(spec, first_shard, lambda shard: objects.create(f"{spec.path}/c/{shard}")) as packer:
        for payload in payloads:
            starts.append(packer.position)
            packer.append(memoryview(payload))
        document = metadata.packed_array(spec, packer.position)
    objects.put(f"{spec.path}/zarr.json", metadata.encode(document))
    return starts


def elements(descr: str, count: int, seed: int) -> bytes:
    """Return the bytes of random elements that every library accepts: booleans are only 0 or 1."""
    rng = np.random.default_rng(seed)
    return (
        rng.integers(0, 2, count, np.uint8).tobytes()
        if descr == "|b1"
        else rng.bytes(count * spec_of(descr).itemsize)
    )
