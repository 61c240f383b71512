"""The tables of a leaf: the index (labels, numbers, shape, digest) and the statistics.

A table is a Zarr array of one chunk: (row, field), zstd, and a crc32c at the end. The checksum is that of its
own content, and so is that of a table of another step or rank. The commit lists what each of its tables ends
with: whoever reads one compares four bytes, and computes nothing.

The attribute `fields` of a table names its columns. There are few
wide tables instead of one array per column, so that a step has ten small objects instead of forty, each of
which costs one round trip to open.

The label `record` of a row is a JSON object. `file` has the values of a file of tensors, in one of its rows;
`tensor` has what is known of this tensor alone; `path` the keys that lead to it, if its name does not tell
them apart; `view` how it is picked from the bytes of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import VLenUTF8, Zstd

from workers.arrays import statistics
from workers.arrays.digest import DIGEST_BYTES
from workers.errors import DamagedStore, DumpError
from workers.store import metadata, untrusted
from workers.store.model import RowKind
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
        return {self.path: document}, {self.chunk: encode_table(table, self.data_type)}

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
        decoded = decode_table(table, self.data_type, shape, what)
        refuse_foreign({self.chunk: table}, checksums, where)
        if stored == list(self.fields):
            return decoded
        ordered = np.empty((len(decoded), len(self.fields)), decoded.dtype)
        for column, field in enumerate(self.fields):
            ordered[:, column] = decoded[:, stored.index(field)] if field in stored else missing
        return ordered


def encode_table(array: npt.NDArray[Any], data_type: str) -> bytes:
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


def decode_table(chunk: bytes, data_type: str, shape: tuple[int, int], where: str) -> npt.NDArray[Any]:
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
    try:
        rows, columns = document["shape"]
    except (KeyError, TypeError, ValueError) as exc:
        raise DamagedStore(f"{where} does not have a shape of two axes") from exc
    if not all(type(n) is int and 0 <= n < untrusted.MAX_TABLE_NBYTES for n in (rows, columns)):
        raise DamagedStore(f"{where} has an impossible shape")
    return rows, columns


def _fields_of(document: metadata.Document, columns: int, where: str) -> Sequence[str]:
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


#: Text columns of the index. `source` is the path relative to the dump; `lead` and `tail` are the bytes of
#: the source file before and after the payload, as latin-1 text. `layout` is `device` if the payload is
#: stored as it lay in the memory of the accelerator, `host` if it was brought into the order of its axes, and
#: "" if it needed nothing; `device_shape` has the lengths of its axes there, with commas. `record` is JSON;
#: `statistics_from` is `computed` or the file that gave the statistics.
LABELS = (
    "kind",
    "net",
    "graph",
    "op_type",
    "op_name",
    "full_name",
    "io",
    "format",
    "declared_dtype",
    "dtype",
    "array",
    "layout",
    "device_shape",
    "source",
    "lead",
    "tail",
    "record",
    "statistics_from",
    "problem",
)
#: Integer columns of the index. `sequence` is the place in the list that the dump itself keeps. `offset` and
#: `size` are in elements of the packed array, `nbytes` is the stored payload in bytes. `source_offset` is
#: where the payload begins in the source file, `source_nbytes` how many bytes it has there, `source_size` the
#: bytes of that file. `fortran_order` is 0 or 1, `groups` counts the groups of a convolution in device
#: layout; times come from the source file.
NUMBERS = (
    "slot",
    "occurrence",
    "task",
    "stream",
    "timestamp",
    "sequence",
    "offset",
    "size",
    "nbytes",
    "source_offset",
    "source_nbytes",
    "source_size",
    "ndim",
    "fortran_order",
    "groups",
    "mtime_ns",
)


@dataclass(frozen=True, eq=False)
class Tables:
    """The rows of one leaf: one for each tensor, and for each file without tensors."""

    labels: npt.NDArray[Any]
    """(row, len(LABELS)) of str."""
    numbers: npt.NDArray[np.int64]
    """(row, len(NUMBERS))."""
    shape: npt.NDArray[np.int64]
    """(row, axis): lengths of the axes, -1 beyond the last."""
    digest: npt.NDArray[np.uint8]
    """(row, 16): XXH3-128 of the payload, zeros if it could not be read."""
    statistics: npt.NDArray[np.float64]
    """(row, len(statistics.FIELDS))."""
    known_disagreeing: npt.NDArray[np.bool_] | None = None
    """(row,): see `disagreeing`. None for tables that were read from a store, which does not have it."""

    @property
    def disagreeing(self) -> npt.NDArray[np.bool_]:
        """Whether the statistics that the dump gives for a tensor differ from the computed ones, (row,)."""
        known = self.known_disagreeing
        return disagreeing(self.label("problem")) if known is None else known

    @property
    def has_views(self) -> bool:
        """Whether a file has parts besides its tensors, or a tensor has none of the bytes of its file."""
        is_view = (self.number("source_nbytes") == 0) & (self.number("nbytes") > 0)
        return bool(is_view.any() or (self.label("kind") == RowKind.PART.value).any())

    @cached_property
    def values_of_files(self) -> dict[str, dict[str, Any]]:
        """By file, its values besides tensors: one row of a file has them, which may have thousands."""
        sources, records = self.label("source"), self.label("record")
        found: dict[str, dict[str, Any]] = {}
        for source, text in zip(sources.tolist(), records.tolist(), strict=True):
            values = parse_record(text).get("file") if '"file"' in text else None
            if isinstance(values, dict):
                found.setdefault(source, {}).update(values)
        return found

    def only(self, row: int) -> Tables:
        """Return the tables of one row, which is row 0 there."""
        known = self.known_disagreeing
        return Tables(
            labels=self.labels[row : row + 1],
            numbers=self.numbers[row : row + 1],
            shape=self.shape[row : row + 1],
            digest=self.digest[row : row + 1],
            statistics=self.statistics[row : row + 1],
            known_disagreeing=None if known is None else known[row : row + 1],
        )

    def label(self, name: str) -> npt.NDArray[Any]:
        """Return one text column."""
        column: npt.NDArray[Any] = self.labels[:, LABELS.index(name)]
        return column

    def number(self, name: str) -> npt.NDArray[np.int64]:
        """Return one integer column."""
        column: npt.NDArray[np.int64] = self.numbers[:, NUMBERS.index(name)]
        return column

    def statistic(self, name: str) -> npt.NDArray[np.float64]:
        """Return one column of the statistics."""
        column: npt.NDArray[np.float64] = self.statistics[:, statistics.FIELDS.index(name)]
        return column


_TABLES = {
    "labels": TableFormat("index/labels", "string", ("row", "label"), LABELS),
    "numbers": TableFormat("index/numbers", "int64", ("row", "number"), NUMBERS),
    "shape": TableFormat("index/shape", "int64", ("row", "axis")),
    "digest": TableFormat("index/digest", "uint8", ("row", "digest_byte")),
    "statistics": TableFormat("statistics", "float64", ("row", "statistic"), statistics.FIELDS),
}
#: What the columns hold that another version did not write.
_UNKNOWN = {"string": "", "int64": -1, "uint8": 0, "float64": np.nan}


def encode(tables: Tables) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
    """Return the metadata and the chunk of each table, by their paths in a generation."""
    documents: dict[str, metadata.Document] = {}
    chunks: dict[str, bytes] = {}
    for name, table in _TABLES.items():
        of_table = table.encode(getattr(tables, name))
        documents |= of_table[0]
        chunks |= of_table[1]
    return documents, chunks


def chunk_keys() -> list[str]:
    """Return the keys of the chunks that `decode` needs, relative to a generation."""
    return [table.chunk for table in _TABLES.values()]


def decode(
    documents: Mapping[str, metadata.Document],
    chunks: Mapping[str, bytes],
    where: str,
    checksums: Mapping[str, int] = NO_CHECKSUMS,
) -> Tables:
    """Rebuild the tables from the metadata and the chunks, each by its path in the generation.

    Args:
        documents: the metadata.
        chunks: the chunks.
        where: names the step.
        checksums: what the commit lists of the chunks.

    Raises:
        DamagedStore: a chunk is missing, not what its metadata says, or not that of the commit.
    """
    arrays, damaged = decode_each(documents, chunks, where, checksums)
    for reason in damaged.values():
        raise DamagedStore(reason)
    if len({len(array) for array in arrays.values()}) > 1:
        raise DamagedStore(f"{where}: its tables have different numbers of rows")
    return Tables(**arrays)


def decode_each(
    documents: Mapping[str, metadata.Document],
    chunks: Mapping[str, bytes],
    where: str,
    checksums: Mapping[str, int] = NO_CHECKSUMS,
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Decode what can be decoded of a leaf with damaged tables; see `decode`.

    Returns:
        The whole tables by their fields in `Tables`; and what is wrong with each of the others, by the key of
        its chunk in the generation.
    """
    arrays, damaged = {}, {}
    for name, table in _TABLES.items():
        try:
            unknown = _UNKNOWN[table.data_type]
            arrays[name] = table.decode(documents, chunks, where, checksums, missing=unknown)
        except DamagedStore as exc:
            damaged[table.chunk] = exc.message
    return arrays, damaged


def check(
    decoded: Tables, documents: Mapping[str, metadata.Document], where: str, *, has_tensors: bool = True
) -> Tables:
    """Return the tables of a leaf, if readers can rely on them; see `decode`.

    Raises:
        DamagedStore: a value is impossible; `where` names the step.
    """
    for problem in _impossible(decoded, documents, has_tensors=has_tensors):
        raise DamagedStore(f"{where}: index/{problem}")
    return decoded


def _impossible(
    decoded: Tables, documents: Mapping[str, metadata.Document], *, has_tensors: bool
) -> Iterator[str]:
    """Yield the values of an index that dump-ingest never writes.

    A reader takes memory for `size` elements and reads them at `offset`, so these must lie in their array.
    """
    number, ndim, width = decoded.number, decoded.number("ndim"), decoded.shape.shape[1]
    if decoded.digest.shape[1] != DIGEST_BYTES:
        yield f"digest has not {DIGEST_BYTES} columns"
    for name in ("size", "nbytes", "source_offset", "source_nbytes", "source_size"):
        if (number(name) < 0).any():
            yield f"numbers has a negative {name}"
    if (number("offset") < -1).any() or ((ndim < 0) | (ndim > width)).any():
        yield "numbers has an impossible offset or ndim"
    if ((decoded.shape < 0) & (np.arange(width) < ndim[:, np.newaxis])).any():
        yield "shape has a negative length"
    for label in ("lead", "tail"):
        if any(ord(max(text)) > _LATIN1 for text in set(decoded.label(label)) - {""}):
            yield f"labels has text that is not latin-1 in {label}"
    yield from _beyond_their_arrays(decoded, documents, has_tensors=has_tensors)


def _beyond_their_arrays(
    decoded: Tables, documents: Mapping[str, metadata.Document], *, has_tensors: bool
) -> Iterator[str]:
    arrays, sizes, offsets = decoded.label("array"), decoded.number("size"), decoded.number("offset")
    for path in set(arrays):
        if not has_tensors and metadata.is_of_tensors(path):
            continue  # nobody reads what the step is kept without
        rows = (arrays == path) & (sizes > 0) & (offsets >= 0)
        match documents.get(path, {}).get("shape"):
            case [int(length)] if 0 <= length < 2**62 and length is not True:
                pass
            case _:
                length = 0
        # Not their sum, which may be larger than 64-bit integers.
        if rows.any() and (sizes[rows] > length - offsets[rows]).any():
            yield f"numbers has elements beyond the end of {path!r:.100}"


def empty_statistics(rows: int) -> npt.NDArray[np.float64]:
    """Return a statistics table in which all is unknown."""
    return np.full((rows, len(statistics.FIELDS)), np.nan)


def empty_digests(rows: int) -> npt.NDArray[np.uint8]:
    """Return a digest table of zeros."""
    return np.zeros((rows, DIGEST_BYTES), np.uint8)


def shape_table(shapes: Sequence[tuple[int, ...]]) -> npt.NDArray[np.int64]:
    """Return the shapes as a table, -1 beyond the last axis."""
    distinct = list(dict.fromkeys(shapes))  # thousands of tensors share a few
    table = np.full((len(distinct), max((*map(len, distinct), 1))), -1, np.int64)
    for row, shape in enumerate(distinct):
        table[row, : len(shape)] = shape
    places = {shape: row for row, shape in enumerate(distinct)}
    return table[[places[shape] for shape in shapes]] if shapes else table


#: The last character of latin-1.
_LATIN1 = 255
#: Stands between the file that reports statistics and how they differ from the computed ones.
_DISAGREES = " disagrees: "


def with_disagreement(problem: str, source: str, differences: Sequence[str]) -> str:
    """Return the label of a row whose reported and computed statistics differ.

    Args:
        problem: the label without that.
        source: the file that reports the statistics.
        differences: how they differ, for people.
    """
    disagreement = f"{source}{_DISAGREES}{', '.join(differences)}"
    return f"{problem}; {disagreement}" if problem else disagreement


def disagreeing(problems: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the labels that `with_disagreement` made, (row,) of str."""
    mask = np.asarray(problems != "")
    mask[mask] = [_DISAGREES in problem for problem in problems[mask]]
    return mask


def attributes_of(tables: Tables, row: int) -> dict[str, Any]:
    """Return the values of the file of a tensor; and under `tensor`, what is known of that alone."""
    attributes = dict(tables.values_of_files.get(str(tables.label("source")[row]), {}))
    own = record_of(tables, row)
    if "tensor" in own:
        attributes["tensor"] = own["tensor"]
    return attributes


def record_of(tables: Tables, row: int) -> dict[str, Any]:
    """Return the record of a row; {} if it has none, or it is damaged."""
    return parse_record(str(tables.label("record")[row]))


def parse_record(text: str) -> dict[str, Any]:
    """Return a record that is written as JSON; {} if it is empty, or not one."""
    try:
        record = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
