"""Decoding what anybody may have written: sizes are compared with what is expected before memory is taken.

A checksum shows that bytes are as they were written, but not who wrote them. Decoders of numcodecs take as
much memory as the bytes ask for, so this is checked here first.
"""

from __future__ import annotations

from typing import Any

from numcodecs import VLenUTF8, Zstd

#: The largest table that is written or read, before compression. A step of 200,000 files has about 100 MB.
MAX_TABLE_NBYTES = 1 << 30
_ZSTD = Zstd()
_VLEN = VLenUTF8()
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOSC_HEADER_NBYTES = 16


def zstd(body: bytes, *, exactly: int | None = None, at_most: int = MAX_TABLE_NBYTES) -> bytes:
    """Return the content of a zstd frame.

    Raises:
        ValueError: the frame does not state the size of its content, or this is more than `at_most` bytes, or
            not `exactly` this many.
        RuntimeError: it is damaged.
    """
    claimed = _zstd_content_size(body)
    if claimed is None or claimed > at_most or exactly not in (None, claimed):
        wanted = f"at most {at_most}" if exactly is None else str(exactly)
        raise ValueError(f"its frame holds {claimed} bytes instead of {wanted}")
    return bytes(_ZSTD.decode(body))


def _zstd_content_size(body: bytes) -> int | None:
    # RFC 8878, section 3.1.1: magic, descriptor, window (unless it is a single segment), dictionary, size.
    if body[:4] != _ZSTD_MAGIC or len(body) < 5:
        return None
    descriptor = body[4]
    single_segment = bool(descriptor & 0x20)
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(body) < at + width:
        return None
    return int.from_bytes(body[at : at + width], "little") + (256 if width == 2 else 0)


def blosc_is(body: bytes | memoryview, nbytes: int) -> bool:
    """Return whether a blosc buffer states its true length, and holds `nbytes` bytes by its header."""
    # c-blosc, README_CHUNK_FORMAT.rst. The decoder trusts the stated length: if it is too large, it reads
    # beyond the buffer.
    if len(body) < _BLOSC_HEADER_NBYTES:
        return False
    claimed, own = int.from_bytes(body[4:8], "little"), int.from_bytes(body[12:16], "little")
    return claimed == nbytes and own == len(body)


def texts(raw: bytes, count: int) -> Any:
    """Return `count` texts from their `vlen-utf8` form, (count,) of str.

    Raises:
        ValueError: it holds another number of texts, or is damaged.
    """
    if int.from_bytes(raw[:4], "little") != count:  # numcodecs, vlen.pyx
        raise ValueError(f"it does not hold {count} texts")
    try:
        return _VLEN.decode(raw)
    except SystemError as exc:  # for a negative length
        raise ValueError("a length is impossible") from exc
