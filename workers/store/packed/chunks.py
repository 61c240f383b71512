"""The chunks of packed arrays: what Blosc makes of them, in half of its time, and a checksum.

Format: c-blosc 1.21, README_CHUNK_FORMAT.rst. A chunk is cut into blocks; the bits of each are shuffled, and
each byte of the elements, eight planes of bits, is a stream for LZ4. What LZ4 does not make smaller is kept
as it is. Blosc shuffles in vectors of 16 bytes, and writes into new memory. Here vectors are as wide as the
processor has them (`workers.arrays.compiled.bitshuffle_code`), LZ4 is the one inside of Blosc, and the memory
is used again. The bytes are the same: before it is used, an encoder is compared with Blosc. Blosc encodes the
chunks that this encoder cannot.

Chunks in which many elements are zero take much less room with zstd and shuffled bytes. Where zeros lie
between others at random, as ReLU and dropout leave them, they do not show once bits are shuffled. What makes
them small is the code of each byte by its frequency, so zstd looks for repetitions in few places only, which
Blosc cannot ask of it. Such a chunk, too, is one as Blosc makes it: a header, the place of the one block, its
length, the block. See docs/design/005-codec-and-encoder.md.

The decoder does all of its work, with the checksum, in one call without the lock of Python: see
`workers.arrays.compiled.chunk_loops`. LZ4 is used in its safe form. A store may be written by anybody: all
places and lengths are checked before anything is read from there. Whatever is not as the encoder writes it is
left to Blosc.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, blosc

from workers.arrays.compiled import chunk_plan, kernels
from workers.arrays.compiled.chunk_plan import ITEMSIZES, LENGTH_NBYTES, STREAM_NBYTES
from workers.model import MIB
from workers.store import untrusted

if TYPE_CHECKING:
    from workers.arrays.compiled.kernel_objects import KernelEntry


NO_SHUFFLE, SHUFFLE, BIT_SHUFFLE = Blosc.NOSHUFFLE, Blosc.SHUFFLE, Blosc.BITSHUFFLE


@lru_cache(maxsize=64)
def compressor(codec: str, level: int, shuffle: int, itemsize: int, block_nbytes: int = 0) -> Blosc:
    """Return a compressor of items of `itemsize` bytes, in blocks of a size that 0 leaves to Blosc.

    Like zarr-python, this keeps Blosc to one thread in the whole process: with several, the blocks of a
    chunk come in any order, and the same values would not give the same bytes.
    """
    blosc.use_threads = False
    # numcodecs asks for a lock all the same, and makes it a semaphore of the system, which a killed process
    # leaves behind. This one belongs to the process.
    blosc._MUTEX, blosc._MUTEX_IS_INIT = threading.Lock(), True  # noqa: SLF001
    return Blosc(codec, level, shuffle, block_nbytes, typesize=itemsize)


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
        loops = kernels.kept()
        if loops is not None and fits(chunk_nbytes, itemsize) and _is_exact(itemsize):
            return ShuffledLz4(chunk_nbytes, itemsize, loops[f"bitshuffle{itemsize}"])
    return ByBlosc(codec)


@lru_cache(maxsize=8)
def _is_exact(itemsize: int) -> bool:
    """Return whether this Blosc gives the same: it may choose other blocks, or have another LZ4."""
    loops = kernels.kept()
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
    return _library_function(blosc.__file__, "LZ4_compress_fast", ctypes.c_int, "aaiii")


@lru_cache(maxsize=1)
def _crc32c_function() -> Any:
    native = getattr(google_crc32c, "_crc32c", None)  # without it, a library in Python computes them
    return native and _library_function(native.__file__, "crc32c_value", ctypes.c_uint32, "an")


def checksum(address: int, nbytes: int, content: memoryview) -> bytes:
    """Return the crc32c of `nbytes` at an address, where `content` begins, without copying them."""
    compute = _crc32c_function()
    value = compute(address, nbytes) if compute else google_crc32c.value(bytes(content[:nbytes]))
    return int(value).to_bytes(CRC_BYTES, "little")


def _library_function(library: str, name: str, result: Any, arguments: str) -> Any:
    """Return a function of a library; its arguments are addresses (a), int (i) and size_t (n)."""
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError):
        return None
    kinds = {"a": ctypes.c_void_p, "i": ctypes.c_int, "n": ctypes.c_size_t}
    function.restype, function.argtypes = result, [kinds[kind] for kind in arguments]
    return function


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
_ZSTD_VERSION, _SHUFFLED_ZSTD, _ZSTD_COPIED = 1, 0b1001_0001, 0b0000_0010


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
    create: Any
    set_parameter: Any
    compress: Any
    free: Any


@lru_cache(maxsize=1)
def _zstd() -> _Zstd | None:
    """Return zstd; None if the library does not show it, or does not have what is needed."""
    library = blosc.__file__
    functions = (
        _library_function(library, "ZSTD_createCCtx", ctypes.c_void_p, ""),
        _library_function(library, "ZSTD_CCtx_setParameter", ctypes.c_size_t, "aii"),
        _library_function(library, "ZSTD_compress2", ctypes.c_size_t, "aanan"),
        _library_function(library, "ZSTD_freeCCtx", ctypes.c_size_t, "a"),
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
        loops = kernels.kept()
        self._shuffle = loops[f"byteshuffle{itemsize}"] if loops is not None else None
        self._planes = np.empty((itemsize, chunk_nbytes // itemsize), np.uint8)
        encoded = np.empty(HEADER.size + chunk_nbytes + CRC_BYTES, np.uint8)
        self._planes_at, self._encoded_at = kernels.address(self._planes), kernels.address(encoded)
        self._encoded = encoded.data

    def encode(self, chunk: memoryview) -> memoryview:
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
            nbytes, flags = HEADER.size + self._nbytes, _SHUFFLED_ZSTD | _ZSTD_COPIED
            self._encoded[HEADER.size : nbytes] = source.data
        else:
            _PLACES.pack_into(self._encoded, HEADER.size, HEADER.size + LENGTH_NBYTES, stream)
        sizes = self._nbytes, self._nbytes, nbytes
        HEADER.pack_into(self._encoded, 0, VERSION, _ZSTD_VERSION, flags, self._itemsize, *sizes)
        end = nbytes + CRC_BYTES
        self._encoded[nbytes:end] = checksum(self._encoded_at, nbytes, self._encoded)
        return self._encoded[:end]


#: Loading the kernels takes as long as Blosc takes for this many bytes.
_WORTH_NBYTES: Final = 48 * MIB
_BAD_CHECKSUM: Final = "crc32c does not match"
_PROBLEMS: Final = {
    chunk_plan.ENDS_EARLY: "it ends within the places of its blocks",
    chunk_plan.IN_HEADER: "a block begins within the header",
    chunk_plan.BEHIND_END: "a block begins behind the end",
    chunk_plan.TOO_LONG: "a stream is too long",
    chunk_plan.DAMAGED_STREAM: "a stream of LZ4 is damaged",
}


class ChunkDecoder:
    """Decodes chunks of one array. Threads may share it: each has a block of memory, at most 1 MiB."""

    #: What Blosc has decoded in this process. Threads may lose some of it, which does no harm.
    decoded_nbytes: ClassVar[int] = 0

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
        self._kernels: _Kernels | None = None

    def decode(self, encoded: memoryview, into: memoryview) -> None:
        """Decode a chunk.

        Args:
            encoded: as it is stored, with its checksum at the end.
            into: `chunk_nbytes` bytes for the content.

        Raises:
            ValueError: the checksum does not match, or the header states another size.
            RuntimeError: it is damaged.
        """
        body = encoded[: max(len(encoded) - CRC_BYTES, 0)]
        if len(into) != self._nbytes:
            raise ValueError(f"{len(into)} bytes of memory for {self._nbytes}")
        has_size = untrusted.blosc_is(body, self._nbytes)
        fast = self._fast()
        if fast and has_size and is_as_encoded(body, self._itemsize):
            decompress(encoded, into, self._itemsize, fast)
            return
        source = kernels.address(np.frombuffer(encoded, np.uint8))
        if checksum(source, len(body), body) != encoded[len(body) :]:
            raise ValueError(_BAD_CHECKSUM)
        if not has_size:
            raise ValueError(f"its header states another size than {self._nbytes} bytes")
        self._codec.decode(body, into)

    def _fast(self) -> _Kernels | None:
        """Return a decoder of chunks as our encoder writes them; None if Blosc has to decode them."""
        if self._kernels is None and self._itemsize:
            ChunkDecoder.decoded_nbytes += self._nbytes
            if self.decoded_nbytes > _WORTH_NBYTES:
                if not _decodes_exactly(self._itemsize):
                    self._itemsize = 0
                self._kernels = _kernels(self._itemsize)
        return self._kernels


def is_as_encoded(body: memoryview, itemsize: int) -> bool:
    """Return whether a chunk whose header states its true sizes is one that `decompress` takes."""
    version, lz4_version, flags, typesize, nbytes, block, _ = HEADER.unpack_from(body)
    usual = (VERSION, LZ4_VERSION, SHUFFLED_LZ4, itemsize, STREAM_NBYTES * itemsize)
    return (version, lz4_version, flags, typesize, block) == usual and fits(nbytes, itemsize)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Compiled code for elements of one size."""

    decode: KernelEntry
    functions: tuple[int, int, int]
    """The addresses of what it calls: see `workers.arrays.compiled.chunk_plan`."""


def decompress(encoded: memoryview, into: memoryview, itemsize: int, kernels_of: _Kernels) -> None:
    """Decode a chunk that `is_as_encoded`, with its checksum, of as many bytes as `into` has.

    Raises:
        ValueError: the checksum does not match.
        RuntimeError: it is damaged.
    """
    source, target = (kernels.address(np.frombuffer(side, np.uint8)) for side in (encoded, into))
    blocks = len(into) // (STREAM_NBYTES * itemsize)
    end = source + len(encoded) - CRC_BYTES
    plan = _Plan(0, source, end, target, itemsize, blocks, _scratch.planes_at, *kernels_of.functions)
    plan_at = ctypes.addressof(plan)
    plan[chunk_plan.COLUMNS_AT] = plan_at + chunk_plan.COLUMNS * chunk_plan.WORD_NBYTES
    kernels_of.decode(plan_at)
    outcome = plan[chunk_plan.OUTCOME]
    if outcome == chunk_plan.BAD_CHECKSUM:
        raise ValueError(_BAD_CHECKSUM)
    if outcome != chunk_plan.DECODED:
        raise RuntimeError(_PROBLEMS[outcome])


_Plan = ctypes.c_int64 * chunk_plan.FIELDS


class _PlanesOfThread(threading.local):
    """Memory for the planes of a block, for each thread."""

    def __init__(self) -> None:
        self._planes = np.empty(STREAM_NBYTES * max(ITEMSIZES), np.uint8)
        self.planes_at = kernels.address(self._planes)


_scratch = _PlanesOfThread()


@lru_cache(maxsize=8)
def _decodes_exactly(itemsize: int) -> bool:
    fast = _kernels(itemsize)
    if fast is None:
        return False
    sample = sample_block(itemsize)
    body = bytes(compressor("lz4", LEVEL, BIT_SHUFFLE, itemsize).encode(sample))
    if not is_as_encoded(memoryview(body), itemsize):
        return False
    address = kernels.address(np.frombuffer(body, np.uint8))
    encoded = memoryview(body + checksum(address, len(body), memoryview(body)))
    into = memoryview(bytearray(sample.nbytes))
    try:
        decompress(encoded, into, itemsize, fast)
    except (ValueError, RuntimeError):
        return False
    return into == sample.data


def _kernels(itemsize: int) -> _Kernels | None:
    """Return the code for elements of a size; None if there is none, or no library has what it calls."""
    loops, functions = kernels.kept(), (_crc32c_function(), _lz4_decompress())
    if loops is None or not itemsize or not all(functions):
        return None
    crc32c, lz4 = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return _Kernels(loops["decode_chunk"], (crc32c, lz4, loops[f"bitunshuffle{itemsize}"].address))


@lru_cache(maxsize=1)
def _lz4_decompress() -> Any:
    return _library_function(blosc.__file__, "LZ4_decompress_safe", ctypes.c_int, "aaii")
