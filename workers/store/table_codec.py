"""One table as a Zarr array of one chunk: (row, field), zstd, and a crc32c at the end.

The checksum is that of its own content, and so is that of a table of another step or rank. The commit lists
what each of its tables ends with: whoever reads one compares four bytes, and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import VLenUTF8, Zstd

from workers.errors import DamagedStore, DumpError
from workers.store import metadata, untrusted
from workers.store.packed.shards import crc32c, without_crc32c

_ZSTD = Zstd(level=3)
_VLEN = VLenUTF8()
#: Bytes with which the codec begins: the number of texts.
_COUNT_NBYTES = 4
#: Rows of texts that are encoded at a time.
_ROWS = 32


def encode(array: npt.NDArray[Any], data_type: str) -> bytes:
    """Return a table as the bytes of its one chunk."""
    if data_type == "string":
        raw: bytes | bytearray = _encode_texts(array)
    else:
        little = np.dtype(data_type).newbyteorder("<")
        raw = np.ascontiguousarray(array, dtype=little).tobytes()
    if len(raw) > untrusted.MAX_TABLE_NBYTES:  # no reader would decode it
        raise DumpError(f"a table of {len(raw)} bytes; the limit is {untrusted.MAX_TABLE_NBYTES}")
    encoded = bytes(_ZSTD.encode(raw))
    return encoded + crc32c(encoded)


def _encode_texts(array: npt.NDArray[Any]) -> bytearray:
    """Return texts as the codec does, some rows at a time: all texts at once would not fit into the cache."""
    raw = bytearray(array.size.to_bytes(_COUNT_NBYTES, "little"))
    for row in range(0, len(array), _ROWS):
        encoded = _VLEN.encode(np.ascontiguousarray(array[row : row + _ROWS], dtype=object).reshape(-1))
        raw += memoryview(encoded)[_COUNT_NBYTES:]
    return raw


def decode(chunk: bytes, data_type: str, shape: tuple[int, int], where: str) -> npt.NDArray[Any]:
    """Return a table from the bytes of its one chunk; `where` names it.

    Raises:
        DamagedStore: it is damaged, or not of this shape.
    """
    try:
        body = without_crc32c(chunk, where)
        if data_type == "string":
            texts = untrusted.texts(untrusted.zstd(body), math.prod(shape))
            return np.asarray(texts, dtype=object).reshape(shape)
        little = np.dtype(data_type).newbyteorder("<")
        raw = untrusted.zstd(body, exactly=math.prod(shape) * little.itemsize)
        return np.frombuffer(raw, dtype=little).reshape(shape)
    except (ValueError, RuntimeError, MemoryError) as exc:
        raise DamagedStore(f"{where} cannot be decoded: {exc}") from exc


def shape_of(document: metadata.Document, where: str) -> tuple[int, int]:
    """Return the numbers of rows and columns of a table; `where` names it.

    Raises:
        DamagedStore: its metadata does not have them.
    """
    try:
        rows, columns = document["shape"]
    except (KeyError, TypeError, ValueError) as exc:
        raise DamagedStore(f"{where} does not have a shape of two axes") from exc
    if not all(type(n) is int and 0 <= n < untrusted.MAX_TABLE_NBYTES for n in (rows, columns)):
        raise DamagedStore(f"{where} has an impossible shape")
    return rows, columns


def fields_of(document: metadata.Document, columns: int, where: str) -> list[str]:
    """Return the names of the columns of a table; `where` names it.

    Raises:
        DamagedStore: its metadata does not have them.
    """
    attributes = document.get("attributes")
    names = attributes.get("fields", []) if isinstance(attributes, dict) else []
    is_text = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_text or len(names) != columns:
        raise DamagedStore(f"{where} has {columns} columns, but not as many names")
    return names


#: What a commit of an earlier version lists.
NO_CHECKSUMS: Mapping[str, int] = MappingProxyType({})
_CRC_BYTES = 4


def checksums_of(chunks: Mapping[str, bytes]) -> dict[str, int]:
    """Return what a commit lists of chunks: the crc32c at the end of each, by path in the generation."""
    return {path: _checksum_of(chunk) for path, chunk in chunks.items()}


def refuse_foreign(chunks: Mapping[str, bytes], listed: Mapping[str, int], where: str) -> None:
    """Check that chunks which were read are those of the commit.

    Args:
        chunks: the chunks, by path in the generation.
        listed: the checksums in the commit.
        where: names the step.

    Raises:
        DamagedStore: one of them is another one, such as that of another step.
    """
    for path, chunk in chunks.items():
        if path in listed and listed[path] != _checksum_of(chunk):
            table = path.partition("/c/")[0]
            raise DamagedStore(f"{where}: {table} is not the one that was committed: its crc32c is another")


def _checksum_of(chunk: bytes) -> int:
    return int.from_bytes(chunk[-_CRC_BYTES:], "little")
