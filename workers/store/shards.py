"""Whole shards of the standard `sharding_indexed` codec, encoded and decoded piece by piece.

Format: zarr-specs, "Sharding codec" version 1.0: encoded inner chunks one behind the other, then an index of
(offset, nbytes) pairs as little-endian uint64, then the crc32c of the index. An inner chunk that was never
written is 2**64-1 twice. Inner chunks are `bytes`, `blosc`, `crc32c`.

Written here rather than by zarr-python because a shard is then encoded while its data is in cache, in
memory bounded by one encoded shard, and uploaded by one PUT; and read here because zarr-python fills in
zeros where a chunk is missing, while for us that is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, blosc

from workers.errors import DamagedStore
from workers.model import ArraySpec
from workers.store.objects import ObjectStore

_MISSING = 2**64 - 1
_CRC_BYTES = 4
_INDEX_ENTRY_BYTES = 16


def codecs(spec: ArraySpec) -> list[dict[str, Any]]:
    """Return the codec chain of the packed array as Zarr metadata."""
    crc32c = {"name": "crc32c"}
    return [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [spec.chunk],
                "codecs": [
                    bytes_codec(spec),
                    {"name": "blosc", "configuration": _blosc_config(spec)},
                    crc32c,
                ],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, crc32c],
                "index_location": "end",
            },
        }
    ]


def bytes_codec(spec: ArraySpec) -> dict[str, Any]:
    """Return the `bytes` codec of an array as Zarr metadata."""
    if spec.itemsize == 1:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": "big" if spec.big_endian else "little"}}


def _blosc_config(spec: ArraySpec) -> dict[str, Any]:
    numbers = {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle"}
    text = {"cname": "zstd", "clevel": 3, "shuffle": "noshuffle"}
    # complex128 is two float64: bits are shuffled by the part.
    typesize = spec.itemsize // 2 if spec.data_type.startswith("complex") else spec.itemsize
    return {**(text if spec.path == "files" else numbers), "typesize": typesize, "blocksize": 0}


@lru_cache(maxsize=64)
def _blosc(spec: ArraySpec) -> Blosc:
    # With threads the blocks of a chunk come in any order, and the same source would not give the same bytes.
    # For the whole process, as zarr-python does.
    blosc.use_threads = False
    config = _blosc_config(spec)
    shuffle = {"noshuffle": Blosc.NOSHUFFLE, "bitshuffle": Blosc.BITSHUFFLE}[config["shuffle"]]
    return Blosc(config["cname"], config["clevel"], shuffle, 0, typesize=config["typesize"])


def crc32c(data: bytes) -> bytes:
    """Return the checksum that the `crc32c` codec appends: four bytes, little-endian."""
    return int(google_crc32c.value(data)).to_bytes(_CRC_BYTES, "little")


def without_crc32c(data: bytes, where: str) -> bytes:
    """Return `data` without the checksum at its end.

    Raises:
        DamagedStore: the checksum does not match; `where` names the object.
    """
    body = data[:-_CRC_BYTES]
    if len(data) < _CRC_BYTES or crc32c(body) != data[-_CRC_BYTES:]:
        raise DamagedStore(f"{where}: crc32c does not match")
    return body


class ShardPacker:
    """Packs payloads one behind the other into whole shards.

    Memory: one inner chunk, and one encoded shard.
    """

    def __init__(self, spec: ArraySpec, first_shard: int, emit: Callable[[int, bytearray], None]) -> None:
        """Start at the boundary of `first_shard`; `emit(shard number, object)` is called for each one."""
        self._spec = spec
        self._emit = emit
        self._codec = _blosc(spec)
        self._shard = first_shard
        self._buffer = memoryview(bytearray(spec.chunk_nbytes))
        self._filled = 0
        self._encoded = bytearray()
        self._lengths: list[int] = []

    @property
    def position(self) -> int:
        """The element of the array at which the next payload will begin."""
        in_shard = len(self._lengths) * self._spec.chunk + self._filled // self._spec.itemsize
        return self._shard * self._spec.shard + in_shard

    def append(self, payload: memoryview) -> None:
        """Pack `payload`, whole elements as plain bytes; a large one may come in several calls."""
        size = self._spec.chunk_nbytes
        while len(payload):
            if not self._filled and len(payload) >= size:
                self._encode(payload[:size])
                payload = payload[size:]
                continue
            take = min(size - self._filled, len(payload))
            self._buffer[self._filled : self._filled + take] = payload[:take]
            self._filled += take
            payload = payload[take:]
            if self._filled == size:
                self._encode(self._buffer)
                self._filled = 0

    def close(self) -> None:
        """Write what is left as the last shard, its last chunk filled up with zeros."""
        if self._filled:
            self._buffer[self._filled :] = bytes(len(self._buffer) - self._filled)
            self._encode(self._buffer)
            self._filled = 0
        if self._lengths:
            self._finish_shard()

    def _encode(self, chunk: memoryview) -> None:
        encoded = self._codec.encode(chunk)
        self._encoded += encoded
        self._encoded += crc32c(encoded)
        self._lengths.append(len(encoded) + _CRC_BYTES)
        if len(self._lengths) == self._spec.chunks_per_shard:
            self._finish_shard()

    def _finish_shard(self) -> None:
        index = np.full((self._spec.chunks_per_shard, 2), _MISSING, dtype="<u8")
        lengths = np.array(self._lengths, dtype="<u8")
        index[: len(lengths), 0] = np.cumsum(lengths) - lengths
        index[: len(lengths), 1] = lengths
        encoded_index = index.tobytes()
        self._encoded += encoded_index
        self._encoded += crc32c(encoded_index)
        self._emit(self._shard, self._encoded)
        self._encoded = bytearray()
        self._lengths = []
        self._shard += 1


class ShardReader:
    """Reads element ranges of one packed array.

    Keeps the index of each shard that it has seen, and the last chunks, so that neighbours are read at once:
    at most `read_ahead` + 1 decoded chunks. Not safe to share between threads.
    """

    def __init__(self, objects: ObjectStore, prefix: str, spec: ArraySpec, *, read_ahead: int = 0) -> None:
        """Read the shards at `{prefix}/c/{number}`, `read_ahead` chunks more than asked for."""
        self._objects = objects
        self._prefix = prefix
        self.spec = spec
        self._read_ahead = read_ahead
        self._indexes: dict[int, npt.NDArray[np.uint64]] = {}
        self._chunks: dict[int, bytes] = {}

    def read(self, start: int, stop: int) -> bytearray:
        """Return the bytes of elements `start` to `stop`.

        Two requests per shard touched: its index, if it was not seen before, and the chunks.

        Raises:
            DamagedStore: a shard or chunk is missing, or its checksum does not match.
        """
        out = bytearray()
        chunk = self.spec.chunk
        first, last = start // chunk, -(-stop // chunk)
        per_shard = self.spec.chunks_per_shard
        while first < last:
            # Up to the end of what is wanted, or of the shard.
            end = min(last, (first // per_shard + 1) * per_shard)
            for number, data in self._load(first, end):
                begin = max(start - number * chunk, 0) * self.spec.itemsize
                until = min(stop - number * chunk, chunk) * self.spec.itemsize
                out += memoryview(data)[begin:until]
            first = end
        return out

    def pieces(self, start: int, stop: int, piece: int) -> Iterator[bytearray]:
        """Yield the bytes of elements `start` to `stop` in pieces of at most `piece` elements."""
        for begin in range(start, stop, piece):
            yield self.read(begin, min(begin + piece, stop))

    def _load(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield chunks `first` to `last`, all of one shard, with their numbers."""
        while first < last and first in self._chunks:
            yield first, self._chunks[first]
            first += 1
        if first == last:
            return
        shard, begin = divmod(first, self.spec.chunks_per_shard)
        entries = self._index(shard)[begin:]
        wanted = last - first
        written = (
            int(np.argmax(entries[:, 0] == _MISSING)) if (entries[:, 0] == _MISSING).any() else len(entries)
        )
        if written < wanted:
            raise DamagedStore(f"{self._key(shard)}: a chunk that holds data is missing")
        entries = entries[: min(max(wanted, self._read_ahead), written)]
        # Chunks are written in order, so what is wanted is one contiguous range.
        start, stop = int(entries[0, 0]), int(entries[-1, 0] + entries[-1, 1])
        data = self._objects.get_range(self._key(shard), start, stop)
        if data is None or len(data) != stop - start:
            raise DamagedStore(f"{self._key(shard)}: bytes {start} to {stop} are missing")
        self._chunks = {}
        for number, (offset, nbytes) in enumerate(entries.tolist(), start=first):
            decoded = self._decode(
                data[offset - start : offset - start + nbytes], f"{self._key(shard)} chunk {number}"
            )
            if number >= last - 1:
                self._chunks[number] = decoded
            if number < last:
                yield number, decoded

    def _key(self, shard: int) -> str:
        return f"{self._prefix}/c/{shard}"

    def _decode(self, encoded: bytes, where: str) -> bytes:
        body = without_crc32c(encoded, where)
        try:
            decoded = bytes(_blosc(self.spec).decode(body))
        except (RuntimeError, ValueError) as exc:
            raise DamagedStore(f"{where}: cannot be decompressed: {exc}") from exc
        if len(decoded) != self.spec.chunk_nbytes:
            raise DamagedStore(f"{where}: {len(decoded)} bytes instead of {self.spec.chunk_nbytes}")
        return decoded

    def _index(self, shard: int) -> npt.NDArray[np.uint64]:
        if shard not in self._indexes:
            key = self._key(shard)
            nbytes = self.spec.chunks_per_shard * _INDEX_ENTRY_BYTES + _CRC_BYTES
            data = self._objects.get_range(key, -nbytes)
            if data is None:
                raise DamagedStore(f"{key}: the shard is missing")
            if len(data) != nbytes:
                raise DamagedStore(f"{key}: {len(data)} bytes, too few for the index of a shard")
            index = np.frombuffer(without_crc32c(data, f"{key} index"), dtype="<u8")
            self._indexes[shard] = index.reshape(-1, 2)
        return self._indexes[shard]
