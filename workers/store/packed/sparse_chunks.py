"""Chunks in which many elements are zero: zstd with shuffled bytes takes much less room for them.

Where zeros lie between others at random, as ReLU and dropout leave them, they do not show once bits are
shuffled. What makes them small is the code of each byte by its frequency, so zstd looks for repetitions in
few places only, which Blosc cannot ask of it. The chunk is one as Blosc makes it: it states how it was
encoded, so readers decode it whichever way was chosen. See docs/design/005-codec-and-encoder.md.

Format: c-blosc 1.21, README_CHUNK_FORMAT.rst: a header, the place of the one block, its length, the block.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numcodecs import blosc

from workers.arrays.compiled import kernels
from workers.arrays.compiled.chunk_plan import ITEMSIZES, LENGTH_NBYTES
from workers.model import MIB
from workers.store.packed.blosc import SHUFFLE, compressor
from workers.store.packed.chunk_encoder import (
    CRC_BYTES,
    HEADER,
    VERSION,
    ByBlosc,
    ChunkEncoder,
    checksum,
    library_function,
)

#: How sparse chunks are encoded, as in the metadata of an array: by the zstd of Blosc at level 1, or with
#: few searches for repetitions. Earlier versions wrote arrays of the first kind.
BY_BLOSC, QUICK = "zstd", "zstd_quick"
#: The share of zeros from which on a chunk is sparse, and about how many of its elements are looked at.
_SPARSE, _LOOKED_AT = 1 / 8, 1024
#: Parameters of zstd (zstd.h 1.5, `ZSTD_cParameter`), and what they are set to: a level below 0 looks the
#: less for repetitions the lower it is, and bytes without any are coded by frequency all the same.
_LEVEL, _CODE_LITERALS = (100, -50), (1002, 1)
#: Sizes of chunks that are one block each.
_CHUNK_NBYTES: Final = range(4096, MIB + 1, 64)
#: Before the stream of such a block: where it begins, with its length, and that.
_PLACES: Final = struct.Struct("<II")
_STREAM_AT: Final = HEADER.size + _PLACES.size
#: The version of the format of zstd; flags: bytes are shuffled, one stream, zstd; and all is a copy.
_ZSTD_VERSION, _SHUFFLED_ZSTD, _COPIED = 1, 0b1001_0001, 0b0000_0010


def sparse_rule(data_type: str) -> str:
    """Return the rule by which sparse chunks of a new array are encoded; "" for a type that has none.

    Only real and complex numbers have any: integers and booleans with many zeros take no more room in the
    usual way.
    """
    if not data_type.startswith(("float", "bfloat", "complex")):
        return ""
    return BY_BLOSC if _zstd() is None else QUICK


def is_sparse(elements: memoryview, itemsize: int) -> bool:
    """Return whether a chunk is sparse, by a sample of its elements of `itemsize` bytes."""
    values = np.frombuffer(elements, f"u{itemsize}")
    # An odd distance: where rows have 2^n elements, every column is looked at.
    sample = values[:: max(values.size // _LOOKED_AT, 1) | 1]
    return bool(sample.size - np.count_nonzero(sample) >= max(_SPARSE * sample.size, 1))


def encoder_of_sparse(rule: str, chunk_nbytes: int, itemsize: int) -> ChunkEncoder:
    """Return an encoder of sparse chunks.

    Args:
        rule: from `sparse_rule`.
        chunk_nbytes: bytes of each chunk.
        itemsize: bytes of an element.
    """
    is_one_block = chunk_nbytes in _CHUNK_NBYTES and chunk_nbytes % (64 * itemsize) == 0
    zstd = _zstd() if rule == QUICK and itemsize in ITEMSIZES and is_one_block else None
    if zstd is None:
        return ByBlosc(compressor("zstd", 1, SHUFFLE, itemsize, MIB))
    return _QuickZstd(zstd, chunk_nbytes, itemsize)


class _Zstd(NamedTuple):
    """Functions of the zstd that Blosc is linked with."""

    create: Any
    set_parameter: Any
    compress: Any
    free: Any


@lru_cache(maxsize=1)
def _zstd() -> _Zstd | None:
    """Return zstd; None if the library does not show it, or does not have what is needed."""
    library = blosc.__file__
    functions = (
        library_function(library, "ZSTD_createCCtx", ctypes.c_void_p, ""),
        library_function(library, "ZSTD_CCtx_setParameter", ctypes.c_size_t, "aii"),
        library_function(library, "ZSTD_compress2", ctypes.c_size_t, "aanan"),
        library_function(library, "ZSTD_freeCCtx", ctypes.c_size_t, "a"),
    )
    if None in functions:
        return None
    zstd = _Zstd(*functions)
    context = _context(zstd)
    # An error is a number near the largest.
    has_all = all(zstd.set_parameter(context, *pair) < MIB for pair in (_LEVEL, _CODE_LITERALS))
    zstd.free(context)
    return zstd if has_all else None


def _context(zstd: _Zstd) -> int:
    """Return a new context of zstd.

    Raises:
        MemoryError: there is no room for it.
    """
    context: int | None = zstd.create()
    if not context:
        raise MemoryError("zstd has no memory for a context")
    return context


class _QuickZstd:
    """Encodes chunks that are one block each. Memory: two chunks, and half a MiB of zstd."""

    def __init__(self, zstd: _Zstd, chunk_nbytes: int, itemsize: int) -> None:
        self._compress, self._nbytes, self._itemsize = zstd.compress, chunk_nbytes, itemsize
        self._context = _context(zstd)
        weakref.finalize(self, zstd.free, self._context)
        for parameter in (_LEVEL, _CODE_LITERALS):
            zstd.set_parameter(self._context, *parameter)
        loops = kernels.entries()
        self._shuffle = loops[f"byteshuffle{itemsize}"] if loops is not None else None
        self._planes = np.empty((itemsize, chunk_nbytes // itemsize), np.uint8)
        encoded = np.empty(HEADER.size + chunk_nbytes + CRC_BYTES, np.uint8)
        self._planes_at, self._encoded_at = kernels.address(self._planes), kernels.address(encoded)
        self._encoded = encoded.data

    def encode(self, chunk: memoryview) -> memoryview:
        """Return a chunk as it is stored."""
        source = np.frombuffer(chunk, np.uint8)
        if self._shuffle is not None:
            self._shuffle(kernels.address(source), source.size // self._itemsize, self._planes_at)
        else:
            self._planes[:] = source.reshape(-1, self._itemsize).T
        room = HEADER.size + self._nbytes - _STREAM_AT
        target = self._encoded_at + _STREAM_AT
        stream = self._compress(self._context, target, room, self._planes_at, self._nbytes)
        nbytes, flags = _STREAM_AT + stream, _SHUFFLED_ZSTD
        if stream > room:  # an error: it does not fit
            nbytes, flags = HEADER.size + self._nbytes, _SHUFFLED_ZSTD | _COPIED
            self._encoded[HEADER.size : nbytes] = source.data
        else:
            _PLACES.pack_into(self._encoded, HEADER.size, HEADER.size + LENGTH_NBYTES, stream)
        sizes = self._nbytes, self._nbytes, nbytes
        HEADER.pack_into(self._encoded, 0, VERSION, _ZSTD_VERSION, flags, self._itemsize, *sizes)
        end = nbytes + CRC_BYTES
        self._encoded[nbytes:end] = checksum(self._encoded_at, nbytes, self._encoded)
        return self._encoded[:end]
