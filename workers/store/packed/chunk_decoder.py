"""Decodes the chunks of packed arrays: what Blosc makes of them, in half of its time, without copies.

The mirror of `workers.store.packed.chunk_encoder`, which has the format. LZ4 is the one inside of Blosc, in
its safe form, and bits are put back in vectors as wide as the processor has them. A store may be written by
anybody: all places and lengths are checked before anything is read from there. Whatever is not as the encoder
writes it is left to Blosc.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numcodecs import Blosc, blosc

from workers.arrays.compiled import kernels
from workers.model import MIB
from workers.store import untrusted
from workers.store.packed.blosc import BIT_SHUFFLE, compressor
from workers.store.packed.chunk_encoder import (
    CONFIGURATION,
    CRC_BYTES,
    HEADER,
    ITEMSIZES,
    LENGTH_NBYTES,
    LEVEL,
    LZ4_VERSION,
    SHUFFLED_LZ4,
    STREAM_NBYTES,
    VERSION,
    checksum,
    fits,
    library_function,
    sample_block,
)

#: Loading the kernels takes as long as Blosc takes for this many bytes.
_WORTH_NBYTES: Final = 48 * MIB
_LENGTH: Final = struct.Struct("<I")


class ChunkDecoder:
    """Decodes chunks of one array. Threads may share it: each has a block of memory, at most 1 MiB."""

    def __init__(self, codec: Blosc, configuration: Mapping[str, Any], chunk_nbytes: int) -> None:
        """Decode chunks of a size.

        Args:
            codec: what decodes everything.
            configuration: how chunks were encoded, as Zarr metadata.
            chunk_nbytes: bytes of each chunk.
        """
        self._codec, self._nbytes = codec, chunk_nbytes
        itemsize = configuration["typesize"]
        is_usual = configuration == CONFIGURATION | {"typesize": itemsize} and itemsize in ITEMSIZES
        self._itemsize = itemsize if is_usual and fits(chunk_nbytes, itemsize) else 0
        self._unshuffle: Callable[..., None] | None = None

    def decode(self, encoded: memoryview, into: memoryview) -> None:
        """Decode a chunk.

        Args:
            encoded: as it is stored, with its checksum at the end.
            into: `chunk_nbytes` bytes for the content.

        Raises:
            ValueError: the checksum does not match, or the header states another size.
            RuntimeError: it is damaged.
        """
        source = np.frombuffer(encoded, np.uint8)
        end = len(encoded) - CRC_BYTES
        body = encoded[: max(end, 0)]
        if len(into) != self._nbytes:
            raise ValueError(f"{len(into)} bytes of memory for {self._nbytes}")
        if end < 0 or checksum(kernels.address(source), end, body) != encoded[end:]:
            raise ValueError("crc32c does not match")
        if not untrusted.blosc_is(body, self._nbytes):
            raise ValueError(f"its header states another size than {self._nbytes} bytes")
        unshuffle = self._fast()
        if unshuffle is None or not is_as_encoded(body, self._itemsize):
            self._codec.decode(body, into)
            return
        decompress(body, into, self._itemsize, unshuffle)

    def _fast(self) -> Callable[..., None] | None:
        """Return what puts bits back; None for what Blosc decodes."""
        if self._unshuffle is None and self._itemsize and _decoded.is_worth_it(self._nbytes):
            loops = kernels.entries()
            if loops is None or not _is_exact(self._itemsize):
                self._itemsize = 0
            else:
                self._unshuffle = loops[f"bitunshuffle{self._itemsize}"]
        return self._unshuffle


@dataclass(slots=True)
class _Decoded:
    """What Blosc has decoded in this process. Threads may lose some of it, which does no harm."""

    nbytes: int = 0

    def is_worth_it(self, nbytes: int) -> bool:
        """Add a chunk; return whether loading the kernels pays."""
        self.nbytes += nbytes
        return self.nbytes > _WORTH_NBYTES


_decoded = _Decoded()


def is_as_encoded(body: memoryview, itemsize: int) -> bool:
    """Return whether a chunk whose header states its true sizes is one that `decompress` takes."""
    version, lz4_version, flags, typesize, nbytes, block, _ = HEADER.unpack_from(body)
    usual = (VERSION, LZ4_VERSION, SHUFFLED_LZ4, itemsize, STREAM_NBYTES * itemsize)
    return (version, lz4_version, flags, typesize, block) == usual and fits(nbytes, itemsize)


def decompress(body: memoryview, into: memoryview, itemsize: int, unshuffle: Callable[..., None]) -> None:
    """Decode a chunk that `is_as_encoded`, of as many bytes as `into` has.

    Raises:
        RuntimeError: it is damaged.
    """
    block = STREAM_NBYTES * itemsize
    blocks = len(into) // block
    starts_end = HEADER.size + blocks * LENGTH_NBYTES
    if len(body) < starts_end:
        raise RuntimeError("it ends within the places of its blocks")
    starts = struct.unpack_from(f"<{blocks}I", body, HEADER.size)
    source, target = (kernels.address(np.frombuffer(side, np.uint8)) for side in (body, into))
    planes, planes_at = _scratch.planes, _scratch.planes_at
    inflate, size = _lz4(), len(body)
    for number, at in enumerate(starts):
        if at < starts_end:
            raise RuntimeError("a block begins within the header")
        for first in range(0, block, STREAM_NBYTES):
            begin = at + LENGTH_NBYTES
            if begin > size:
                raise RuntimeError("a block begins behind the end")
            (length,) = _LENGTH.unpack_from(body, at)
            at = begin + length  # noqa: PLW2901  (the place of the next stream)
            if length > STREAM_NBYTES or at > size:
                raise RuntimeError("a stream is too long")
            if length == STREAM_NBYTES:
                # Not by `ctypes.memmove`, which gives up the lock of Python: see `_lz4`.
                planes[first : first + STREAM_NBYTES] = body[begin:at]
            elif inflate(source + begin, planes_at + first, length, STREAM_NBYTES) != STREAM_NBYTES:
                raise RuntimeError("a stream of LZ4 is damaged")
        unshuffle(planes_at, STREAM_NBYTES, target + number * block)


class _PlanesOfThread(threading.local):
    """The planes of a block, for each thread."""

    def __init__(self) -> None:
        planes = np.empty(STREAM_NBYTES * max(ITEMSIZES), np.uint8)
        self.planes = planes.data
        self.planes_at = kernels.address(planes)


_scratch = _PlanesOfThread()


@lru_cache(maxsize=8)
def _is_exact(itemsize: int) -> bool:
    """Return whether this gives back what Blosc encoded."""
    loops = kernels.entries()
    if loops is None or _lz4() is None:
        return False
    sample = sample_block(itemsize)
    body = memoryview(compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize).encode(sample))
    into = memoryview(bytearray(sample.nbytes))
    if not is_as_encoded(body, itemsize):
        return False
    try:
        decompress(body, into, itemsize, loops[f"bitunshuffle{itemsize}"])
    except RuntimeError:
        return False
    return into == sample.data


@lru_cache(maxsize=1)
def _lz4() -> Any:
    """Return `LZ4_decompress_safe` of the library that Blosc is in; None if it does not show it."""
    # A stream takes 30 us: getting the lock of Python back from threads that also decode takes longer.
    return library_function(blosc.__file__, "LZ4_decompress_safe", ctypes.c_int, "aaii", keeps_lock=True)
