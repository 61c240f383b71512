"""Digests of payload bytes, and of the blocks of a payload: where two tensors differ, without reading either.

XXH3-128 (xxHash 0.8, https://github.com/Cyan4973/xxHash) over the payload as the dump held it, in its
canonical big-endian form of 16 bytes. It does not depend on chunks, codecs or shards, so it survives
re-encoding. A tensor that is read in pieces is digested piece by piece, in order, with the same result.

Of blocks: XXH3-64 of each 64 KiB of the payload as it is stored, and of the rest. Two blocks that differ have
the same digest with a probability of 2**-64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from workers.model import ceil_div

BLOCK_NBYTES = 64 * 1024
#: Payloads of up to this many bytes have no digests of blocks: that of the whole says enough of them.
#: Most bytes of the largest models are in tensors above it.
SMALL_NBYTES = 16 * BLOCK_NBYTES


class RunningBlockDigests:
    """The digests of the blocks of a payload that arrives in pieces."""

    def __init__(self) -> None:
        self._digests: list[int] = []
        self._begun = xxhash.xxh3_64()
        self._filled = 0

    def update(self, piece: memoryview) -> None:
        """Add the next piece, of any number of bytes."""
        at = 0
        if self._filled:
            at = min(BLOCK_NBYTES - self._filled, len(piece))
            self._add(piece[:at])
        while len(piece) - at >= BLOCK_NBYTES:
            self._digests.append(xxhash.xxh3_64_intdigest(piece[at : at + BLOCK_NBYTES]))
            at += BLOCK_NBYTES
        if at < len(piece):
            self._add(piece[at:])

    def result(self) -> npt.NDArray[np.int64]:
        """Return the digests of all blocks, (block,), as signed integers."""
        rest = [self._begun.intdigest()] if self._filled else []
        return np.array([*self._digests, *rest], np.uint64).view(np.int64)

    def _add(self, part: memoryview) -> None:
        self._begun.update(part)
        self._filled += len(part)
        if self._filled == BLOCK_NBYTES:
            self._digests.append(self._begun.intdigest())
            self._begun.reset()
            self._filled = 0


def blocks_of(nbytes: int) -> int:
    """Return how many blocks a payload has."""
    return ceil_div(nbytes, BLOCK_NBYTES)


def differing_runs(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the runs of blocks that differ, as begin and end, from the digests of two payloads of one size.

    Raises:
        ValueError: the payloads have different numbers of blocks.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} blocks and {len(second)}")
    return runs_of(first != second)


def runs_of(differs: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs of places that differ, as begin and end."""
    edges = np.flatnonzero(np.diff(differs, prepend=False, append=False))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]


DIGEST_BYTES = 16


def new_digest() -> xxhash.xxh3_128:
    """Return a running digest with `update(buffer)`, `digest()` and `hexdigest()`."""
    return xxhash.xxh3_128()


#: Returns the 16-byte digest of bytes, or of another buffer.
digest = xxhash.xxh3_128_digest
