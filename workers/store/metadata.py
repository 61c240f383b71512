"""Zarr v3 metadata documents, as plain JSON.

Format: zarr-specs, "Zarr core specification" version 3.1. Written by hand, so that a worker can commit a step
without zarr-python; the tests open the result with zarr-python, zarrs and TensorStore.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from workers.arrays import dtypes
from workers.store.model import ArraySpec
from workers.store.packed import pool, shards
from workers.store.packed.chunks import BY_BLOSC, QUICK

Document: TypeAlias = dict[str, Any]

#: The attribute of a group that holds everything of ours.
ATTRIBUTE = "dump_ingest"
#: The attribute of a packed array that names the type of its elements, if that is not the data type.
LOGICAL_DTYPE = "logical_dtype"
#: The attribute of a packed array whose chunks may be sparse: how those that are were encoded.
SPARSE_CHUNKS = "sparse_chunks"
#: The most that the compressor accepts.
_MAX_CHUNK_NBYTES = 2**31
#: Raised when an older version could no longer read a store. No earlier format was ever released.
FORMAT_VERSION = 6


def is_of_tensors(path: str) -> bool:
    """Return whether a node or an object holds payloads of tensors: below the group `tensors`, or pooled."""
    return path == "tensors" or path.startswith("tensors/") or pool.is_pooled(path)


def group(attributes: Mapping[str, Any] | None = None) -> Document:
    """Return the metadata of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes or {})}


def leaf(record: Mapping[str, Any], nodes: Mapping[str, Document]) -> Document:
    """Return the metadata of a leaf group: its commit record, and the metadata of all nodes below it."""
    inline = {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}
    return {**group({ATTRIBUTE: dict(record)}), "consolidated_metadata": inline}


class OwnAttributes(msgspec.Struct):
    """Our attribute of a group, to be decoded as its type."""

    dump_ingest: msgspec.Raw


class _Group(msgspec.Struct):
    attributes: OwnAttributes


_DECODE_GROUP = msgspec.json.Decoder(_Group).decode


def own_attributes(data: bytes) -> msgspec.Raw:
    """Return our attribute in the `zarr.json` of a group, to be decoded as its type.

    Raises:
        ValueError, RecursionError: it is not such a document.
    """
    return _DECODE_GROUP(data).attributes.dump_ingest


def packed_array(spec: ArraySpec, length: int) -> Document:
    """Return the metadata of a packed array of `length` elements.

    An array of a type that zarr-python lacks is one of unsigned integers, with the type in an attribute: a
    library that does not know a type in the metadata of a step refuses all of the step.
    """
    name = spec.path.rsplit("/", 1)[-1]
    core_name = dtypes.core_name(spec.data_type)
    document = array((length,), core_name, (spec.shard,), shards.codecs(spec), (f"{name}_element",))
    if core_name != spec.data_type:
        document["attributes"][LOGICAL_DTYPE] = spec.data_type
    if spec.sparse:
        document["attributes"][SPARSE_CHUNKS] = spec.sparse
    return document


def packed_spec(path: str, document: Document) -> ArraySpec:
    """Return the grid of a packed array from its metadata: the inverse of `packed_array`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: this is not a packed array.
    """
    (sharding,) = document["codecs"]
    configuration = sharding["configuration"]
    (chunk,) = configuration["chunk_shape"]
    (shard,) = document["chunk_grid"]["configuration"]["chunk_shape"]
    if not all(type(n) is int and 0 < n < 2**62 for n in (chunk, shard)) or shard % chunk:
        raise ValueError("an impossible grid")
    # Without the attribute, also of stores that name the type as their data type.
    attributes = document.get("attributes", {})
    data_type = attributes.get(LOGICAL_DTYPE, document["data_type"])
    element = dtypes.from_name(data_type)
    if document["data_type"] not in (data_type, dtypes.core_name(data_type)):
        raise ValueError(f"{data_type} is not stored as {document['data_type']}")
    if chunk * element.itemsize > _MAX_CHUNK_NBYTES:
        raise ValueError("an impossible chunk")
    rule = attributes.get(SPARSE_CHUNKS)
    to_bytes = configuration["codecs"][0]
    big_endian = to_bytes.get("configuration", {}).get("endian") == "big"
    return ArraySpec(
        path,
        data_type,
        element.itemsize,
        big_endian,
        chunk,
        shard // chunk,
        dense=_dense(configuration["codecs"]),
        sparse=rule if rule in (BY_BLOSC, QUICK) else "",  # another rule is of a later version
    )


def _dense(codecs: Sequence[Document]) -> str:
    """Return how the chunks of a packed array are shuffled for zstd; "" if they are encoded otherwise."""
    config = codecs[1].get("configuration", {}) if len(codecs) > 1 else {}
    is_dense = config.get("cname") == "zstd" and config.get("shuffle") in ("shuffle", "bitshuffle")
    return str(config["shuffle"]) if is_dense else ""


def table_array(
    shape: tuple[int, int], data_type: str, dimension_names: tuple[str, str], fields: Sequence[str]
) -> Document:
    """Return the metadata of a table that is one chunk; `fields` name its columns."""
    serializer: Document = {"name": "vlen-utf8"}
    if data_type != "string":
        serializer = {"name": "bytes"}
        if data_type != "uint8":
            serializer["configuration"] = {"endian": "little"}
    zstd = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    # A chunk may not be empty, even if the table is.
    chunk = (max(shape[0], 1), max(shape[1], 1))
    document = array(shape, data_type, chunk, [serializer, zstd, {"name": "crc32c"}], dimension_names)
    document["attributes"] = {"fields": list(fields)}
    return document


def array(
    shape: tuple[int, ...],
    data_type: str,
    chunk: tuple[int, ...],
    codecs: list[Document],
    dimension_names: tuple[str, ...],
) -> Document:
    """Return the metadata of an array without attributes, filled with zeros."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value(data_type),
        "codecs": codecs,
        "dimension_names": list(dimension_names),
        "attributes": {},
        "storage_transformers": [],
    }


def fill_value(data_type: str) -> Any:
    """Return the number whose bits are all zero, as the metadata of an array spells it."""
    if data_type == "string":
        return ""
    if data_type == "bool":
        return False
    if data_type.startswith("complex"):
        return [0.0, 0.0]
    if data_type.startswith("float8"):
        return "0x00"  # one of them has no zero, and zarrs reads no other form
    return 0.0 if "float" in data_type else 0


def encode(document: Document) -> bytes:
    """Return a metadata document as the bytes of `zarr.json`.

    Raises:
        ValueError: it holds NaN or an infinity, which JSON does not have.
    """
    # Compact: with line breaks, Python encodes ten times as slowly, and that is a third of a small commit.
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
