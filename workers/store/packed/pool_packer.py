"""Packs payloads into arrays of the pool: gathers and names them, and writes what is not there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from numcodecs import blosc

from workers.model import StepKey, ceil_div
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.objects import ObjectStore, StoredObject
from workers.store.packed import pool
from workers.store.packed.pool import PooledArray
from workers.store.packed.shards import ShardPacker
from workers.store.pieces import Gathered


@dataclass(frozen=True, slots=True)
class PackedInPool:
    """An array in the pool that holds what was packed."""

    path: str
    """Relative to the root of the store."""
    array: PooledArray


class PoolPacker:
    """Packs payloads one after the other into arrays of the pool of a step.

    Used as `with PoolPacker(...) as packer:`. When the block has ended, `arrays` are in the store. After an
    error, those that were begun are not. Memory: the payloads of one array, and its shard.
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
        self._pieces: list[bytes] = []
        self._nbytes = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the last array, unless there was an error."""
        if error is None:
            self._finish()

    @property
    def position(self) -> int:
        """The element of the array at which the next payload will begin."""
        return self._nbytes // self._spec.itemsize

    @property
    def number(self) -> int:
        """The place that the array of the next payload will have in `arrays`."""
        return len(self.arrays)

    def make_room(self, nbytes: int) -> None:
        """Begin another array if the next payload does not fit into this one."""
        if self._nbytes and self._nbytes + nbytes > self._spec.shard_nbytes:
            self._finish()

    def append(self, payload: memoryview) -> None:
        """Pack `payload`, whole elements as plain bytes; a large payload may come in several calls."""
        self._pieces.append(bytes(payload))
        self._nbytes += len(payload)

    def _finish(self) -> None:
        if not self._nbytes:
            return
        spec = fitted(self._spec, self.position)
        node = node_of(spec, self.position)
        dtype = spec.path.rpartition("/")[2]
        path = pool.array_path(self._key, content_digest(node, self._pieces), dtype)
        listed = self._objects.listed(path)
        is_there = self._is_young(listed)
        nbytes = listed[pool.SHARD].nbytes if is_there else len(self._write(path, spec, node))
        self.arrays.append(PackedInPool(path, PooledArray(nbytes, node)))
        self._pieces, self._nbytes = [], 0

    def _is_young(self, listed: dict[str, StoredObject]) -> bool:
        """Return whether an array is whole, and was written so lately that gc leaves it alone for long."""
        if not listed.keys() >= {pool.SHARD, pool.NODE}:
            return False
        age_s = self._clock() - min(listed[name].modified_at for name in (pool.SHARD, pool.NODE))
        return -pool.MAX_SKEW_S <= age_s <= pool.REUSE_S

    def _write(self, path: str, spec: ArraySpec, node: metadata.Document) -> bytes:
        encoded = encode(spec, self._pieces)
        write(self._objects, path, encoded, node)
        return encoded


def write(objects: ObjectStore, path: str, encoded: bytes, node: metadata.Document) -> None:
    """Write an array of the pool; its metadata last, which says that it is whole."""
    objects.put(f"{path}/{pool.SHARD}", encoded)
    objects.put(f"{path}/{pool.NODE}", metadata.encode(node))


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


def node_of(spec: ArraySpec, length: int) -> metadata.Document:
    """Return the metadata of an array in the pool of `length` elements; `spec` as `fitted` gives it."""
    node = metadata.packed_array(spec, length)
    # Part of the name: the same name means the same object, byte for byte.
    node["attributes"] = {**node["attributes"], "blosc": blosc.VERSION_STRING}
    return node


def content_digest(node: metadata.Document, pieces: Iterable[bytes | bytearray]) -> str:
    """Return the name of an array in the pool: SHA-256 of its `zarr.json`, a line feed, and its elements.

    A cryptographic digest, because a rank takes over an array of this name without reading it, and ranks do
    not trust each other's dumps.

    Args:
        node: the metadata of the array.
        pieces: the elements as they are stored, plain bytes.
    """
    running = hashlib.sha256(metadata.encode(node) + b"\n")
    for piece in pieces:
        running.update(piece)
    return running.hexdigest()
