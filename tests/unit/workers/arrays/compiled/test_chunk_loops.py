"""The entry that decodes a chunk does what is written in Python here, and reads nothing outside of it.

`tests/unit/workers/store/packed/test_chunks.py` compares it with Blosc, and gives it damaged chunks.
"""

import ctypes

import google_crc32c
import numpy as np
import pytest

from workers.arrays.compiled import kernels
from workers.arrays.compiled.chunk_plan import (
    COLUMNS,
    COLUMNS_AT,
    FIELDS,
    HEADER_NBYTES,
    LENGTH_NBYTES,
    OUTCOME,
    STREAM_NBYTES,
    WORD_NBYTES,
    Outcome,
)
from workers.store.packed.chunks import _kernels

RNG = np.random.default_rng(31)


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """The objects, made now if `make setup` has not done it."""
    kernels.warm_up()


def uncompressed(content: np.ndarray, itemsize: int) -> bytes:
    """Return a chunk whose streams are kept as they are; its header is left empty."""
    places, body = [], b""
    start = HEADER_NBYTES + content.size // (STREAM_NBYTES * itemsize) * LENGTH_NBYTES
    for block in content.reshape(-1, STREAM_NBYTES, itemsize):
        places.append(start + len(body))
        for column in block.T:
            body += STREAM_NBYTES.to_bytes(LENGTH_NBYTES, "little")
            for bit in range(8):
                body += np.packbits(column >> bit & 1, bitorder="little").tobytes()
    return bytes(HEADER_NBYTES) + np.array(places, "<u4").tobytes() + body


def decoded(body: bytes, itemsize: int, blocks: int, checksum: int | None = None) -> tuple[Outcome, bytes]:
    """Return the outcome, and the content."""
    known = _kernels(itemsize)
    assert known is not None
    value = google_crc32c.value(body) if checksum is None else checksum
    chunk = np.frombuffer(body + value.to_bytes(4, "little"), np.uint8)
    content = np.zeros(blocks * STREAM_NBYTES * itemsize, np.uint8)
    planes = np.empty(STREAM_NBYTES * itemsize, np.uint8)
    source, target, room = map(kernels.address, (chunk, content, planes))
    plan = (ctypes.c_int64 * FIELDS)(
        -1, source, source + len(body), target, itemsize, blocks, room, *known.functions
    )
    plan[COLUMNS_AT] = ctypes.addressof(plan) + COLUMNS * WORD_NBYTES
    known.decode(ctypes.addressof(plan))
    return Outcome(plan[OUTCOME]), content.tobytes()


def test_what_is_wrong_is_told_and_nothing_is_written() -> None:
    body = uncompressed(RNG.integers(0, 256, STREAM_NBYTES, np.uint8), 1)
    nothing = bytes(STREAM_NBYTES)

    def changed(at: int, value: int) -> bytes:
        return body[:at] + value.to_bytes(4, "little") + body[at + 4 :]

    first = HEADER_NBYTES + LENGTH_NBYTES
    assert decoded(body, 1, 1, checksum=1) == (Outcome.BAD_CHECKSUM, nothing)
    assert decoded(body[: first - 1], 1, 1) == (Outcome.ENDS_EARLY, nothing)
    assert decoded(changed(HEADER_NBYTES, first - 1), 1, 1) == (Outcome.IN_HEADER, nothing)
    assert decoded(changed(HEADER_NBYTES, len(body) - 3), 1, 1) == (Outcome.BEHIND_END, nothing)
    assert decoded(changed(HEADER_NBYTES, 2**32 - 1), 1, 1) == (Outcome.BEHIND_END, nothing)
    assert decoded(changed(first, STREAM_NBYTES + 1), 1, 1) == (Outcome.TOO_LONG, nothing)
    assert decoded(changed(first, 2**32 - 1), 1, 1) == (Outcome.TOO_LONG, nothing)
    assert decoded(body[:-1], 1, 1) == (Outcome.TOO_LONG, nothing)
    assert decoded(changed(first, 0), 1, 1) == (Outcome.DAMAGED_STREAM, nothing)
