"""Chunks of N-dimensional Zarr arrays, plain or sharded along one axis, encoded and decoded whole.

The codecs of numbers are `bytes`, `blosc` (lz4, shuffle), `crc32c`; the codecs of text are `vlen-utf8`,
`zstd`, `crc32c`. A sharded array cuts each of its chunks into inner chunks along one axis (format: see
`shards`), all of which are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, VLenUTF8, Zstd

from workers.errors import DamagedStore
from workers.model import ceil_div
from workers.store import metadata, untrusted
from workers.store.packed.chunks import SHUFFLE, compressor
from workers.store.packed.shards import crc32c, sharded, without_crc32c

Array: TypeAlias = npt.NDArray[Any]

_ENTRY_NBYTES = 16
_CRC_NBYTES = 4
_ZSTD = Zstd(level=3)
_VLEN = VLenUTF8()


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Everything about one array except its shape: type, chunks, codecs, names of its axes."""

    path: str
    data_type: str
    """As Zarr names it: `int64`, `float64`, `string`..."""
    dimensions: tuple[str, ...]
    chunk: tuple[int, ...]
    """One object: the chunk of a plain array, the shard of a sharded one."""
    fill: Any
    """The value of elements that were never written, as numpy has it."""
    inner: int = 0
    """Length of an inner chunk along `inner_axis`; 0 if the array is not sharded."""
    inner_axis: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements in memory."""
        return np.dtype(object) if self.data_type == "string" else np.dtype(self.data_type)

    def document(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Return its Zarr metadata."""
        codecs = self._codecs()
        if self.inner:
            codecs = sharded(list(self._inner_shape()), codecs)
        fill: Any = "NaN" if isinstance(self.fill, float) and np.isnan(self.fill) else self.fill
        document = metadata.array(shape, self.data_type, self.chunk, codecs, self.dimensions)
        return {**document, "fill_value": fill, "attributes": dict(self.attributes)}

    def key(self, index: tuple[int, ...]) -> str:
        """Return the key of one chunk, relative to the group."""
        return f"{self.path}/c/" + "/".join(map(str, index))

    def keys(self, shape: tuple[int, ...]) -> dict[tuple[int, ...], str]:
        """Return the keys of all chunks of the array at this shape, by index."""
        counts = [range(ceil_div(length, chunk)) for length, chunk in zip(shape, self.chunk, strict=True)]
        return {index: self.key(index) for index in product(*counts)}

    def full(self) -> Array:
        """Return one chunk that was never written."""
        return np.full(self.chunk, self.fill, self.dtype)

    def encode(self, chunk: Array) -> bytes:
        """Return one chunk as an object; a shorter one is filled up at the ends of its axes."""
        if not self.inner:
            return self._encode_part(self._filled_up(chunk, self.chunk))
        shape = self._inner_shape()
        parts = [self._encode_part(self._filled_up(part, shape)) for part in self._parts(chunk)]
        lengths = np.array([len(part) for part in parts], "<u8")
        index = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1).astype("<u8").tobytes()
        return b"".join([*parts, index, crc32c(index)])

    def decode(self, data: bytes | None, where: str) -> Array:
        """Return the chunk that `encode` turned into `data`; None means a chunk that was never written.

        Raises:
            DamagedStore: it is damaged; `where` names the object.
        """
        if data is None:
            return self.full()
        if not self.inner:
            return self._decode_part(data, self.chunk, where)
        whole = np.empty(self.chunk, self.dtype)
        for target, part in zip(self._parts(whole), self.inner_parts(data, where), strict=True):
            target[...] = part
        return whole

    def inner_parts(self, data: bytes, where: str) -> Iterator[Array]:
        """Yield the inner chunks of an object in order; of one that is not sharded, the only chunk.

        Chunks in a row with equal bytes, such as zeros alone, are decoded once, and are then the same array.

        Raises:
            DamagedStore: it is damaged; `where` names the object.
        """
        if not self.inner:
            yield self._decode_part(data, self.chunk, where)
            return
        encoded, part = b"", np.empty(0)
        for start, stop in self.inner_ranges(data, where):
            if data[start:stop] != encoded or not part.size:
                encoded = data[start:stop]
                part = self.decode_inner(encoded, where, stop - start)
            yield part

    @property
    def index_nbytes(self) -> int:
        """How many bytes at the end of an object say where its inner chunks are."""
        return self.chunk[self.inner_axis] // self.inner * _ENTRY_NBYTES + _CRC_NBYTES

    def inner_ranges(self, data: bytes, where: str) -> list[tuple[int, int]]:
        """Return where each inner chunk begins and ends in its object.

        Args:
            data: the object, or its last bytes.
            where: names the object.

        Raises:
            DamagedStore: the index is damaged.
        """
        nbytes = self.index_nbytes
        if len(data) < nbytes:
            raise DamagedStore(f"{where}: {len(data)} bytes, too few for the index of a shard")
        index = np.frombuffer(without_crc32c(data[-nbytes:], f"{where} index"), "<u8").reshape(-1, 2)
        return [(offset, offset + length) for offset, length in index.tolist()]

    def decode_inner(self, data: bytes, where: str, nbytes: int) -> Array:
        """Return an inner chunk.

        Args:
            data: what is at its range.
            where: names the object.
            nbytes: the length of its range.

        Raises:
            DamagedStore: it is damaged, or the object ends before it.
        """
        if len(data) < nbytes:
            raise DamagedStore(f"{where}: an inner chunk is missing")
        return self._decode_part(data, self._inner_shape(), where)

    def _filled_up(self, part: Array, shape: tuple[int, ...]) -> Array:
        if part.shape == shape:
            return part
        whole = np.full(shape, self.fill, self.dtype)
        whole[tuple(slice(length) for length in part.shape)] = part
        return whole

    def _inner_shape(self) -> tuple[int, ...]:
        return tuple(self.inner if axis == self.inner_axis else n for axis, n in enumerate(self.chunk))

    def _parts(self, chunk: Array) -> list[Array]:
        before = (slice(None),) * self.inner_axis
        starts = range(0, self.chunk[self.inner_axis], self.inner)
        return [chunk[(*before, slice(start, start + self.inner))] for start in starts]

    def _codecs(self) -> list[dict[str, Any]]:
        if self.data_type == "string":
            zstd = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
            return [{"name": "vlen-utf8"}, zstd, {"name": "crc32c"}]
        to_bytes: dict[str, Any] = {"name": "bytes"}
        if self.dtype.itemsize > 1:
            to_bytes["configuration"] = {"endian": "little"}
        squeezed = {
            "name": "blosc",
            "configuration": {
                "cname": "lz4",
                "clevel": 5,
                "shuffle": "shuffle",
                "typesize": self.dtype.itemsize,
                "blocksize": 0,
            },
        }
        return [to_bytes, squeezed, {"name": "crc32c"}]

    def _encode_part(self, chunk: Array) -> bytes:
        if self.data_type == "string":
            encoded = bytes(_ZSTD.encode(_VLEN.encode(np.ascontiguousarray(chunk, object).reshape(-1))))
        else:
            little = np.ascontiguousarray(chunk, self.dtype.newbyteorder("<"))
            encoded = bytes(_compressor(self.dtype.itemsize).encode(little.reshape(-1).view(np.uint8)))
        return encoded + crc32c(encoded)

    def _decode_part(self, data: bytes, shape: tuple[int, ...], where: str) -> Array:
        body = without_crc32c(data, where)
        try:
            # A chunk states its own size: that is compared before memory is taken for it.
            if self.data_type == "string":
                texts = untrusted.texts(untrusted.zstd(body), math.prod(shape))
                return np.asarray(texts, object).reshape(shape)
            if not untrusted.blosc_is(body, math.prod(shape) * self.dtype.itemsize):
                claimed = int.from_bytes(body[4:8], "little")
                raise DamagedStore(f"{where}: it states a size of {claimed} bytes, which is wrong")
            raw = _compressor(self.dtype.itemsize).decode(body)
            return np.frombuffer(raw, self.dtype.newbyteorder("<")).reshape(shape)
        except (ValueError, RuntimeError, MemoryError) as exc:
            raise DamagedStore(f"{where}: cannot be decoded: {exc}") from exc


def _compressor(itemsize: int) -> Blosc:
    return compressor("lz4", 5, SHUFFLE, itemsize)
