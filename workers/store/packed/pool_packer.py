"""Packs payloads into arrays of the pool: gathers and names them, and writes what is not there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np
from numcodecs import blosc

from workers.model import MIB, StepKey, ceil_div
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.objects import Gathered, ObjectStore, StoredObject
from workers.store.packed import pool
from workers.store.packed.pool import PooledArray
from workers.store.packed.shards import ShardPacker

#: Elements are held in blocks of this size: numpy asks for huge pages for them, and taking and clearing small
#: pages would cost more than the copy. A multiple of usual chunks, which are then encoded where they lie.
_BLOCK_NBYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class PackedInPool:
    """An array in the pool that holds what was packed."""

    path: str
    array: PooledArray


class PoolPacker(AbstractContextManager["PoolPacker"]):
    """Packs payloads one after the other into arrays of the pool of a step.

    Used as `with PoolPacker(...) as packer:`. When the block has ended, `arrays` are in the store. After an
    error, those that were begun are not. Memory: the payloads of one array, in blocks of `_BLOCK_NBYTES`;
    and, if the store is not a directory, its shard, twice.
    """

    def __init__(
        self, spec: ArraySpec, key: StepKey, objects: ObjectStore, clock: Callable[[], float] = time.time
    ) -> None:
        """Pack for a step. `spec` gives type and chunk; its shard is the most that an array holds."""
        self.stored: dict[int, int] = {}
        """Empty: nothing is written into the generation."""
        self.arrays: list[PackedInPool] = []
        """The arrays that are in the store, in the order in which they were packed."""
        self._spec, self._key, self._objects, self._clock = spec, key, objects, clock
        self._held = _HeldElements()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()

    @property
    def position(self) -> int:
        """The element of the array at which the next payload will begin."""
        return self._held.nbytes // self._spec.itemsize

    @property
    def number(self) -> int:
        """The place that the array of the next payload will have in `arrays`."""
        return len(self.arrays)

    @property
    def room(self) -> int:
        """How many bytes this array still takes."""
        return self._spec.shard_nbytes - self._held.nbytes

    def make_room(self, nbytes: int) -> None:
        """Begin another array if the next payload does not fit into this one."""
        if self._held.nbytes and nbytes > self.room:
            self._finish()

    def append(self, payload: memoryview) -> None:
        """Pack `payload`, whole elements as plain bytes; a large payload may come in several calls."""
        self._held.append(payload)

    def _finish(self) -> None:
        if not self._held.nbytes:
            return
        spec = fitted(self._spec, self.position)
        node = metadata.packed_array(spec, self.position)
        # Part of the name: the same name means the same object, byte for byte.
        node["attributes"] = {**node["attributes"], "blosc": blosc.VERSION_STRING}
        dtype = spec.path.rpartition("/")[2]
        path = f"{pool.pool_of(self._key)}/{_name(node, self._held.digest())}/{dtype}"
        listed = self._objects.listed(path)
        if self._is_young(listed):
            nbytes = listed[pool.SHARD].nbytes
        else:
            nbytes = _write(self._objects, path, spec, node, self._held.pieces())
        self.arrays.append(PackedInPool(path, PooledArray(nbytes, node)))
        self._held = _HeldElements()

    def _is_young(self, listed: dict[str, StoredObject]) -> bool:
        """Return whether an array is whole, and was written so lately that gc leaves it alone for long."""
        if not listed.keys() >= {pool.SHARD, pool.NODE}:
            return False
        age_s = self._clock() - min(listed[name].modified_at for name in (pool.SHARD, pool.NODE))
        return -pool.MAX_SKEW_S <= age_s <= pool.REUSE_S


class _HeldElements:
    """The elements of an array that is packed, in memory, and their digest."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._digest = hashlib.sha256()
        self._blocks: list[memoryview] = []

    def append(self, payload: memoryview) -> None:
        self._digest.update(payload)  # now, while they are in the cache
        while len(payload):
            used = self.nbytes % _BLOCK_NBYTES
            if not used:
                self._blocks.append(np.empty(_BLOCK_NBYTES, np.uint8).data)
            fitting = min(_BLOCK_NBYTES - used, len(payload))
            self._blocks[-1][used : used + fitting] = payload[:fitting]
            self.nbytes += fitting
            payload = payload[fitting:]

    def digest(self) -> bytes:
        return self._digest.digest()

    def pieces(self) -> Iterator[memoryview]:
        for number, block in enumerate(self._blocks):
            yield block[: self.nbytes - number * _BLOCK_NBYTES]


def _write(
    objects: ObjectStore, path: str, spec: ArraySpec, node: metadata.Document, pieces: Iterable[memoryview]
) -> int:
    """Write an array of the pool; return the size of its shard.

    Its metadata comes last, which says that it is whole.
    """
    with ShardPacker(spec, 0, lambda _shard: objects.create(f"{path}/{pool.SHARD}")) as packer:
        for piece in pieces:
            packer.append(piece)
    objects.put(f"{path}/{pool.NODE}", metadata.encode(node))
    return packer.stored[0]


def fitted(spec: ArraySpec, length: int) -> ArraySpec:
    """Return the grid of an array in the pool of `length` elements, which is one shard."""
    chunk = max(min(spec.chunk, length), 1)
    return replace(spec, chunk=chunk, chunks_per_shard=max(ceil_div(length, chunk), 1))


def encode(spec: ArraySpec, pieces: Iterable[bytes | bytearray]) -> bytes:
    """Return the one shard of an array in the pool from its elements."""
    encoded: list[bytes] = []
    with ShardPacker(spec, 0, lambda _shard: Gathered(encoded.append)) as packer:
        for piece in pieces:
            packer.append(memoryview(piece))
    (shard,) = encoded
    return shard


def is_named(name: str, node: metadata.Document, pieces: Sequence[bytes | bytearray]) -> bool:
    """Return whether the name of an array in the pool is that of its content.

    Args:
        name: the name, as it is in the path.
        node: the metadata of the array.
        pieces: the elements as they are stored, plain bytes.
    """
    elements = hashlib.sha256()
    for piece in pieces:
        elements.update(piece)
    return name == _name(node, elements.digest())


def _name(node: metadata.Document, elements: bytes) -> str:
    """Return the name of an array in the pool: SHA-256 of the SHA-256 of its elements and its `zarr.json`.

    A cryptographic digest, because a rank takes over an array of this name without reading it, and ranks do
    not trust each other's dumps.
    """
    return hashlib.sha256(elements + metadata.encode(node)).hexdigest()
