"""Files of safetensors: a JSON header that names tensors, and their elements one after the other.

    8 bytes      length of the header, little-endian
    header       {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {...}}
    elements     little-endian, in C order

(safetensors, README "Format" and `safetensors/src/tensor.rs`.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from workers.arrays.dtypes import ElementType, from_name, from_npy_descr
from workers.dump.formats.header import (
    MAX_NDIM,
    HoldsNoTensor,
    PlacedTensor,
    ReadAt,
    TensorHeader,
    Truncated,
    assemble,
    is_addressable,
    read_exactly,
)
from workers.errors import UnreadableTensor

#: The longest header that is read, in bytes. The limit of safetensors itself is 100 MB.
MAX_HEADER_NBYTES = 32 * 1024 * 1024
#: The longest header that is remembered: most files of a dump have the same header as other files.
_MAX_KNOWN_NBYTES = 2048
#: The name in a header that is not the name of a tensor.
METADATA = "__metadata__"
#: The types, by the codes of the format.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C64": "complex64",
}


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the tensors of a safetensors file; see `assemble`. Reads the header only.

    Raises:
        Truncated: the file is shorter than its header says.
        HoldsNoTensor: it is whole, and names none.
        UnreadableTensor: the header is damaged, or an element type is not known.
    """
    length = read(0, 8)
    if len(length) < 8:
        raise Truncated(f"has {file_size} bytes, fewer than a safetensors header")
    nbytes = int.from_bytes(length, "little")
    if nbytes > MAX_HEADER_NBYTES:
        raise UnreadableTensor(
            f"its safetensors header has {nbytes} bytes; at most {MAX_HEADER_NBYTES} are read"
        )
    if 8 + nbytes > file_size:
        raise Truncated(f"has {file_size} bytes, fewer than the {8 + nbytes} of its safetensors header")
    head = length + read_exactly(read, 8, nbytes)
    if nbytes <= _MAX_KNOWN_NBYTES:
        try:
            return _headers_of_alike(head, file_size)
        except UnreadableTensor:  # or there are bytes between its tensors
            pass
    return _headers(head, read, file_size)


@lru_cache(maxsize=64)
def _headers_of_alike(head: bytes, file_size: int) -> tuple[TensorHeader, ...]:
    return _headers(head, lambda offset, nbytes: head[offset : offset + nbytes], file_size)


def _headers(head: bytes, read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    header = _parse(head[8:])
    metadata = header.pop(METADATA, None)
    placed = [_placed(name, fields, len(head)) for name, fields in header.items()]
    end = max((tensor.offset + tensor.nbytes for tensor in placed), default=len(head))
    if end > file_size:
        raise Truncated(f"has {file_size} bytes, but its header announces {end}")
    if end < file_size:
        raise UnreadableTensor(f"has {file_size} bytes, but its header accounts for only {end}")
    attributes = {METADATA: metadata} if isinstance(metadata, dict) and len(str(metadata)) <= 65536 else {}
    if not placed:
        raise HoldsNoTensor("names no tensor", record=json.dumps({"file": attributes}))
    return assemble(placed, attributes, read, file_size)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as exc:
        raise UnreadableTensor("its safetensors header is not JSON") from exc
    if not isinstance(header, dict):
        raise UnreadableTensor("its safetensors header is not a JSON object")
    return header


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Of two members with the same name, one would be lost."""
    unique = dict(members)
    if len(unique) < len(members):
        raise UnreadableTensor("its safetensors header has the same name twice")
    return unique


def _fields(name: str, fields: Any) -> tuple[str, list[int], int, int]:
    """Return the type, the shape, and where the elements begin and end, of a tensor of the header."""
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(first), int(last)]}:
            if len(shape) > MAX_NDIM or not all(type(n) is int and 0 <= n < 2**62 for n in shape):
                raise UnreadableTensor(f"its tensor {name:.80} has an impossible shape")
            return dtype, shape, first, last
    raise UnreadableTensor(f"its header lacks the type, the shape or the place of {name:.80}")


def _placed(name: str, fields: Any, begin: int) -> PlacedTensor:
    dtype, shape, first, last = _fields(name, fields)
    element, declared_dtype = _element(dtype, name)
    nbytes = math.prod(shape) * element.itemsize
    if not is_addressable(shape, element.itemsize):
        raise UnreadableTensor(f"its tensor {name:.80} has a shape of more bytes than there are addresses")
    if declared_dtype:
        shape, nbytes = [last - first], last - first
    if first < 0:
        raise UnreadableTensor(f"its tensor {name:.80} begins before the elements of the file")
    if last < first or last - first != nbytes:
        raise UnreadableTensor(f"its tensor {name:.80} has {last - first} bytes instead of {nbytes}")
    return PlacedTensor(element, tuple(shape), begin + first, nbytes, (name,), declared_dtype=declared_dtype)


def _element(dtype: str, name: str) -> tuple[ElementType, str]:
    """Return the element type, and the name in the file of one that is kept as bytes."""
    if dtype in DTYPES:
        return from_name(DTYPES[dtype]), ""
    if dtype in ("F4", "F6_E2M3", "F6_E3M2"):
        return from_npy_descr(
            "|V1"
        ), dtype  # several elements share bytes, in an order that nothing specifies
    raise UnreadableTensor(f"its tensor {name:.80} has the element type {dtype:.40}, which is not known")


#: The codes of the format, by our names of the types.
CODES: Final = {name: code for code, name in DTYPES.items()}
#: Elements begin at a multiple of this many bytes, so that all are aligned if the largest come first.
_ALIGNMENT: Final = 8


class TensorInFile(NamedTuple):
    """A tensor as the header describes it."""

    name: str
    dtype: str
    """One of `CODES`."""
    shape: tuple[int, ...]
    nbytes: int


def encode_header(tensors: Iterable[TensorInFile], metadata: Mapping[str, str] | None = None) -> bytes:
    """Encode the header of these tensors, which follow one another in this order."""
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": CODES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
