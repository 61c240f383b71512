"""One table as a Zarr array of one chunk: (row, field), zstd, and a crc32c at the end.

The checksum is that of its own content, and so is that of a table of another step or rank. The commit lists
what each of its tables ends with: whoever reads one compares four bytes, and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import VLenUTF8, Zstd

from workers.errors import DamagedStore, DumpError
from workers.store import metadata, untrusted
from workers.store.packed.shards import crc32c, without_crc32c

_ZSTD, _VLEN = Zstd(level=3), VLenUTF8()
#: Bytes with which the codec begins: the number of texts.
_COUNT_NBYTES = 4
#: Rows of texts that are encoded at a time: all texts at once would not fit into the cache.
_ROWS = 32
#: For chunks of which a commit lists nothing.
NO_CHECKSUMS: Mapping[str, int] = MappingProxyType({})
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class TableFormat:
    """One table of a generation: where it is, its type and axes, and the columns that this version knows."""

    path: str
    data_type: str
    dimensions: tuple[str, str]
    fields: tuple[str, ...] = ()
    """Names of the columns; empty for columns that are numbered."""

    @property
    def chunk(self) -> str:
        """The key of its chunk in the generation."""
        return f"{self.path}/c/0/0"

    def encode(self, table: npt.NDArray[Any]) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
        """Return the metadata and the chunk, by path in the generation."""
        rows, columns = table.shape
        document = metadata.table_array((rows, columns), self.data_type, self.dimensions, self.fields)
        return {self.path: document}, {self.chunk: encode(table, self.data_type)}

    def decode(
        self,
        documents: Mapping[str, metadata.Document],
        chunks: Mapping[str, bytes],
        where: str,
        checksums: Mapping[str, int] = NO_CHECKSUMS,
        *,
        missing: object = None,
    ) -> npt.NDArray[Any]:
        """Return the table, its columns in the order of `fields`, without those of a later version.

        Args:
            documents: the metadata, by path in the generation.
            chunks: the chunks, by path in the generation.
            where: names the step.
            checksums: what the commit lists of the chunks.
            missing: the value of a column that is not stored; None if that is damage.

        Raises:
            DamagedStore: the table is missing, not what its metadata says, or not that of the commit.
        """
        table, what = chunks.get(self.chunk), f"{where}: {self.path}"
        document = documents.get(self.path)
        if table is None or document is None:
            raise DamagedStore(f"{what} is missing")
        shape = _shape_of(document, what)
        stored = _fields_of(document, shape[1], what) if self.fields else []
        if missing is None and not set(self.fields) <= set(stored):
            raise DamagedStore(f"{what} does not have the columns {', '.join(self.fields)}")
        decoded = decode(table, self.data_type, shape, what)
        refuse_foreign({self.chunk: table}, checksums, where)
        if stored == list(self.fields):
            return decoded
        ordered = np.empty((len(decoded), len(self.fields)), decoded.dtype)
        for column, field in enumerate(self.fields):
            ordered[:, column] = decoded[:, stored.index(field)] if field in stored else missing
        return ordered


def encode(array: npt.NDArray[Any], data_type: str) -> bytes:
    """Return a table as the bytes of its one chunk."""
    if data_type == "string":
        raw = bytearray(array.size.to_bytes(_COUNT_NBYTES, "little"))
        for row in range(0, len(array), _ROWS):
            texts = np.ascontiguousarray(array[row : row + _ROWS], dtype=object).reshape(-1)
            raw += memoryview(_VLEN.encode(texts))[_COUNT_NBYTES:]
    else:
        raw = bytearray(np.ascontiguousarray(array, np.dtype(data_type).newbyteorder("<")).tobytes())
    if len(raw) > untrusted.MAX_TABLE_NBYTES:  # no reader would decode it
        raise DumpError(f"a table of {len(raw)} bytes; the limit is {untrusted.MAX_TABLE_NBYTES}")
    encoded = bytes(_ZSTD.encode(raw))
    return encoded + crc32c(encoded)


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


def _shape_of(document: metadata.Document, where: str) -> tuple[int, int]:
    """Return the numbers of rows and columns of a table; `where` names it."""
    try:
        rows, columns = document["shape"]
    except (KeyError, TypeError, ValueError) as exc:
        raise DamagedStore(f"{where} does not have a shape of two axes") from exc
    if not all(type(n) is int and 0 <= n < untrusted.MAX_TABLE_NBYTES for n in (rows, columns)):
        raise DamagedStore(f"{where} has an impossible shape")
    return rows, columns


def _fields_of(document: metadata.Document, columns: int, where: str) -> Sequence[str]:
    """Return the names of the columns of a table; `where` names it."""
    attributes = document.get("attributes")
    names = attributes.get("fields", []) if isinstance(attributes, dict) else []
    is_text = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_text or len(names) != columns:
        raise DamagedStore(f"{where} has {columns} columns, but not as many names")
    return names


def checksums_of(chunks: Mapping[str, bytes]) -> dict[str, int]:
    """Return what a commit lists of chunks: the crc32c at the end of each, by path in the generation."""
    return {path: int.from_bytes(chunk[-_CRC_BYTES:], "little") for path, chunk in chunks.items()}


def refuse_foreign(chunks: Mapping[str, bytes], listed: Mapping[str, int], where: str) -> None:
    """Check that chunks which were read are those of the commit.

    Args:
        chunks: the chunks, by path in the generation.
        listed: the checksums in the commit.
        where: names the step.

    Raises:
        DamagedStore: one of them is another one, such as that of another step.
    """
    for path, checksum in checksums_of(chunks).items():
        if listed.get(path, checksum) != checksum:
            table = path.partition("/c/")[0]
            raise DamagedStore(f"{where}: {table} is not the one that was committed: its crc32c is another")
