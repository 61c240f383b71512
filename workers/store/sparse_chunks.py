"""Chunks in which many elements are zero: zstd with shuffled bytes takes much less room for them.

Where zeros lie between others at random, as ReLU and dropout leave them, they do not show once bits are
shuffled. Blosc states in each chunk how it was encoded, so readers need not know which way was taken. See
docs/design/005-codec-and-encoder.md.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workers.model import MIB
from workers.store.blosc import SHUFFLE, compressor
from workers.store.chunk_encoder import ByBlosc, ChunkEncoder

#: The share of zeros from which on a chunk is sparse, and about how many of its elements are looked at.
_SPARSE, _LOOKED_AT = 1 / 8, 1024


def has_sparse_chunks(data_type: str) -> bool:
    """Return whether chunks of a new array may be sparse: if it holds real or complex numbers.

    Integers and booleans with many zeros take no more room in the usual way.
    """
    return data_type.startswith(("float", "bfloat", "complex"))


def is_sparse(elements: memoryview, itemsize: int) -> bool:
    """Return whether a chunk is sparse, by a sample of its elements of `itemsize` bytes."""
    values = np.frombuffer(elements, f"u{itemsize}")
    # An odd distance: where rows have 2^n elements, every column is looked at.
    sample = values[:: max(values.size // _LOOKED_AT, 1) | 1]
    return bool(sample.size - np.count_nonzero(sample) >= max(_SPARSE * sample.size, 1))


@lru_cache(maxsize=16)
def encoder_of_sparse(itemsize: int) -> ChunkEncoder:
    """Return what encodes sparse chunks of elements of `itemsize` bytes."""
    return ByBlosc(compressor("zstd", 1, SHUFFLE, itemsize, MIB))
