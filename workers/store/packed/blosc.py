"""Blosc, as the store uses it: in one thread, and without a lock that outlives the process."""

from __future__ import annotations

import threading
from functools import lru_cache

from numcodecs import Blosc, blosc

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
