"""Decodes the chunks of packed arrays: what Blosc makes of them, in half of its time, without copies.

The mirror of `workers.store.packed.chunk_encoder`, which has the format. LZ4 is the one inside of Blosc, in
its safe form, and bits are put back in vectors as wide as the processor has them. All of it, with the
checksum, is one call without the lock of Python: see `workers.arrays.compiled.chunk_loops`. A store may be
written by anybody: all places and lengths are checked before anything is read from there. Whatever is not as
the encoder writes it is left to Blosc.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numcodecs import Blosc, blosc

from workers.arrays.compiled import chunk_plan, kernels
from workers.arrays.compiled.chunk_plan import ITEMSIZES, STREAM_NBYTES, Outcome
from workers.model import MIB
from workers.store import untrusted
from workers.store.packed.blosc import BIT_SHUFFLE, compressor
from workers.store.packed.chunk_encoder import (
    CONFIGURATION,
    CRC_BYTES,
    HEADER,
    LEVEL,
    LZ4_VERSION,
    SHUFFLED_LZ4,
    VERSION,
    checksum,
    crc32c_function,
    fits,
    library_function,
    sample_block,
)

if TYPE_CHECKING:
    from workers.arrays.compiled.kernel_objects import KernelEntry

#: Loading the kernels takes as long as Blosc takes for this many bytes.
_WORTH_NBYTES: Final = 48 * MIB
_BAD_CHECKSUM: Final = "crc32c does not match"
_PROBLEMS: Final = {
    Outcome.ENDS_EARLY: "it ends within the places of its blocks",
    Outcome.IN_HEADER: "a block begins within the header",
    Outcome.BEHIND_END: "a block begins behind the end",
    Outcome.TOO_LONG: "a stream is too long",
    Outcome.DAMAGED_STREAM: "a stream of LZ4 is damaged",
}


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
        if self._kernels is None and self._itemsize and _decoded.is_worth_it(self._nbytes):
            if not _is_exact(self._itemsize):
                self._itemsize = 0
            self._kernels = _kernels(self._itemsize)
        return self._kernels


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
    if outcome == Outcome.BAD_CHECKSUM:
        raise ValueError(_BAD_CHECKSUM)
    if outcome != Outcome.DECODED:
        raise RuntimeError(_PROBLEMS[Outcome(outcome)])


_Plan = ctypes.c_int64 * chunk_plan.FIELDS


class _PlanesOfThread(threading.local):
    """Memory for the planes of a block, for each thread."""

    def __init__(self) -> None:
        self._planes = np.empty(STREAM_NBYTES * max(ITEMSIZES), np.uint8)
        self.planes_at = kernels.address(self._planes)


_scratch = _PlanesOfThread()


@lru_cache(maxsize=8)
def _is_exact(itemsize: int) -> bool:
    """Return whether this gives back what Blosc encoded."""
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
    loops, functions = kernels.entries(), (crc32c_function(), _lz4())
    if loops is None or not itemsize or not all(functions):
        return None
    crc32c, lz4 = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return _Kernels(loops["decode_chunk"], (crc32c, lz4, loops[f"bitunshuffle{itemsize}"].address))


@lru_cache(maxsize=1)
def _lz4() -> Any:
    """Return `LZ4_decompress_safe` of the library that Blosc is in; None if it does not show it."""
    return library_function(blosc.__file__, "LZ4_decompress_safe", ctypes.c_int, "aaii")
