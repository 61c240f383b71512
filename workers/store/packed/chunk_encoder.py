"""Encodes the chunks of packed arrays: what Blosc makes of them, in half of its time, and a checksum.

Format: c-blosc 1.21, README_CHUNK_FORMAT.rst. A chunk is cut into blocks; the bits of each are shuffled, and
each byte of the elements, eight planes of bits, is a stream for LZ4. What LZ4 does not make smaller is kept
as it is. Blosc shuffles in vectors of 16 bytes, and writes into new memory. Here vectors are as wide as the
processor has them (`workers.arrays.compiled.bitshuffle_code`), LZ4 is the one inside of Blosc, and the memory
is used again. The bytes are the same: before it is used, an encoder is compared with Blosc. Blosc encodes the
chunks that this encoder cannot.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, blosc

from workers.arrays.compiled import kernels
from workers.arrays.compiled.chunk_plan import ITEMSIZES, LENGTH_NBYTES, STREAM_NBYTES
from workers.store.packed.blosc import BIT_SHUFFLE, compressor

CRC_BYTES: Final = 4
#: Blosc with LZ4 at this level: blocks of `STREAM_NBYTES` for each byte of an element, 1 MiB at most; how far
#: LZ4 moves on after each miss at first.
LEVEL: Final = 5
_ACCELERATION: Final = 10 - LEVEL
HEADER: Final = struct.Struct("<BBBBIII")
#: Versions of the format and of the LZ4 format; flags: bits are shuffled, LZ4, and all is a copy.
VERSION, LZ4_VERSION, SHUFFLED_LZ4, _COPIED = 2, 1, 0b0010_0100, 0b0000_0010
#: What is encoded here, for elements of `ITEMSIZES` bytes.
CONFIGURATION: Final = {"cname": "lz4", "clevel": LEVEL, "shuffle": "bitshuffle", "blocksize": 0}


class ChunkEncoder(Protocol):
    """Encodes chunks of one array."""

    def encode(self, chunk: memoryview) -> bytes | memoryview:
        """Return a chunk as it is stored, with its checksum at the end; valid until the next call."""


class ByBlosc:
    """Has Blosc do everything."""

    def __init__(self, codec: Blosc) -> None:
        """Encode by `codec`."""
        self._codec = codec

    def encode(self, chunk: memoryview) -> bytes:
        """Return a chunk as it is stored."""
        encoded: bytes = self._codec.encode(chunk)
        return encoded + int(google_crc32c.value(encoded)).to_bytes(CRC_BYTES, "little")


class ShuffledLz4:
    """Encodes as Blosc does at `LEVEL` with LZ4 and shuffled bits. Memory: a chunk and a block."""

    def __init__(self, chunk_nbytes: int, itemsize: int, shuffle: Callable[..., None]) -> None:
        """Encode chunks of a size that `fits`.

        Args:
            chunk_nbytes: bytes of each chunk.
            itemsize: bytes of an element.
            shuffle: shuffles bits: see `workers.arrays.compiled.bitshuffle_code.compile_entries`.
        """
        self._nbytes, self._itemsize, self._shuffle = chunk_nbytes, itemsize, shuffle
        self._block = STREAM_NBYTES * itemsize
        self._blocks = chunk_nbytes // self._block
        planes = np.empty(self._block, np.uint8)
        encoded = np.empty(HEADER.size + chunk_nbytes + CRC_BYTES, np.uint8)
        self._planes, self._encoded = planes.data, encoded.data
        self._planes_at, self._encoded_at = kernels.address(planes), kernels.address(encoded)
        self._starts = struct.Struct(f"<{self._blocks}I")

    def encode(self, chunk: memoryview) -> memoryview:
        """Return a chunk as it is stored."""
        source = np.frombuffer(chunk, np.uint8)
        nbytes, flags = self._compress(kernels.address(source)), SHUFFLED_LZ4
        if not nbytes:
            nbytes, flags = HEADER.size + self._nbytes, SHUFFLED_LZ4 | _COPIED
            self._encoded[HEADER.size : nbytes] = source.data
        sizes = self._nbytes, self._block, nbytes
        HEADER.pack_into(self._encoded, 0, VERSION, LZ4_VERSION, flags, self._itemsize, *sizes)
        end = nbytes + CRC_BYTES
        self._encoded[nbytes:end] = checksum(self._encoded_at, nbytes, self._encoded)
        return self._encoded[:end]

    def _compress(self, source: int) -> int:
        """Write all but the header of the chunk at an address; return how long it is then, 0 if too long."""
        limit = HEADER.size + self._nbytes
        stream = STREAM_NBYTES  # of which each element has a byte
        compress, encoded, encoded_at = _lz4(), self._encoded, self._encoded_at
        end = HEADER.size + self._starts.size
        starts = []
        for block_at in range(source, source + self._nbytes, self._block):
            starts.append(end)
            self._shuffle(block_at, stream, self._planes_at)
            for first in range(0, self._block, stream):
                begin = end + LENGTH_NBYTES
                room = min(stream, limit - begin)
                if room <= 0:
                    return 0
                length = compress(self._planes_at + first, encoded_at + begin, stream, room, _ACCELERATION)
                if length in (0, stream):
                    length = stream
                    if begin + length > limit:
                        return 0
                    encoded[begin : begin + length] = self._planes[first : first + length]
                encoded[end:begin] = length.to_bytes(LENGTH_NBYTES, "little")
                end = begin + length
        self._starts.pack_into(encoded, HEADER.size, *starts)
        return end


def fits(chunk_nbytes: int, itemsize: int) -> bool:
    """Return whether chunks of this size can be encoded here: they are whole blocks of whole streams."""
    return chunk_nbytes % (STREAM_NBYTES * itemsize) == 0


def encoder_of(codec: Blosc, configuration: Mapping[str, Any], chunk_nbytes: int) -> ChunkEncoder:
    """Return an encoder for chunks of a size that gives the same bytes as `codec`.

    Args:
        codec: Blosc.
        configuration: how it encodes, as Zarr metadata.
        chunk_nbytes: bytes of each chunk.
    """
    itemsize = configuration["typesize"]
    if itemsize in ITEMSIZES and configuration == CONFIGURATION | {"typesize": itemsize}:
        loops = kernels.entries()
        if loops is not None and fits(chunk_nbytes, itemsize) and _is_exact(itemsize):
            return ShuffledLz4(chunk_nbytes, itemsize, loops[f"bitshuffle{itemsize}"])
    return ByBlosc(codec)


@lru_cache(maxsize=8)
def _is_exact(itemsize: int) -> bool:
    """Return whether this Blosc gives the same: it may choose other blocks, or have another LZ4."""
    loops = kernels.entries()
    if loops is None or _lz4() is None:
        return False
    sample = sample_block(itemsize).data
    by_blosc = ByBlosc(compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize)).encode(sample)
    return ShuffledLz4(sample.nbytes, itemsize, loops[f"bitshuffle{itemsize}"]).encode(sample) == by_blosc


def sample_block(itemsize: int) -> npt.NDArray[np.uint8]:
    """Return a block to compare with Blosc: bytes of a small range, so that some planes can be compressed."""
    # The upper bits of squares times 2**32 / golden ratio: numpy's generators take 0.01 s to import.
    numbers = np.arange(STREAM_NBYTES * itemsize, dtype=np.uint32)
    return (numbers * numbers * np.uint32(2_654_435_761) >> np.uint32(29)).astype(np.uint8)


@lru_cache(maxsize=1)
def _lz4() -> Any:
    """Return `LZ4_compress_fast` of the library that Blosc is in; None if it does not show it."""
    return library_function(blosc.__file__, "LZ4_compress_fast", ctypes.c_int, "aaiii")


@lru_cache(maxsize=1)
def crc32c_function() -> Any:
    """Return `crc32c_value` of the library that computes checksums; None if it does not show it."""
    native = getattr(google_crc32c, "_crc32c", None)  # without it, a library in Python computes them
    return native and library_function(native.__file__, "crc32c_value", ctypes.c_uint32, "an")


def checksum(address: int, nbytes: int, content: memoryview) -> bytes:
    """Return the crc32c of `nbytes` at an address, where `content` begins, without copying them."""
    compute = crc32c_function()
    value = compute(address, nbytes) if compute else google_crc32c.value(bytes(content[:nbytes]))
    return int(value).to_bytes(CRC_BYTES, "little")


def library_function(library: str, name: str, result: Any, arguments: str) -> Any:
    """Return a function of a library; its arguments are addresses (a), int (i) and size_t (n)."""
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError):
        return None
    kinds = {"a": ctypes.c_void_p, "i": ctypes.c_int, "n": ctypes.c_size_t}
    function.restype, function.argtypes = result, [kinds[kind] for kind in arguments]
    return function
