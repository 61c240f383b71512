"""What the bytes of one tensor in a DumpData file mean: element type, shape and memory format."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from workers.arrays import device_format
from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import ElementType, from_name
from workers.dump.formats.dump_data_pb2 import DataType, Format, OpBuffer, OpInput, OpOutput, Workspace
from workers.dump.formats.header import MAX_NDIM, is_addressable
from workers.errors import UnreadableTensor

#: Bytes after the elements of a tensor that are accepted as padding, at most.
MAX_PADDING_BYTES = 64 * 2**10

#: Our names of the data types of the header. Tensors of other types are kept as bytes.
ELEMENT_TYPES = {
    DataType.DT_FLOAT: "float32",
    DataType.DT_FLOAT16: "float16",
    DataType.DT_INT8: "int8",
    DataType.DT_UINT8: "uint8",
    DataType.DT_INT16: "int16",
    DataType.DT_UINT16: "uint16",
    DataType.DT_INT32: "int32",
    DataType.DT_INT64: "int64",
    DataType.DT_UINT32: "uint32",
    DataType.DT_UINT64: "uint64",
    DataType.DT_BOOL: "bool",
    DataType.DT_DOUBLE: "float64",
    DataType.DT_COMPLEX64: "complex64",
    DataType.DT_COMPLEX128: "complex128",
    DataType.DT_BF16: "bfloat16",
    DataType.DT_INT4: "int4",
    DataType.DT_UINT1: "uint1",
    DataType.DT_INT2: "int2",
    DataType.DT_UINT2: "uint2",
    DataType.DT_COMPLEX32: "complex32",
    DataType.DT_HIFLOAT8: "hifloat8",
    DataType.DT_FLOAT8_E5M2: "float8_e5m2",
    DataType.DT_FLOAT8_E4M3FN: "float8_e4m3fn",
    DataType.DT_FLOAT8_E8M0: "float8_e8m0fnu",
    DataType.DT_FLOAT6_E3M2: "float6_e3m2",
    DataType.DT_FLOAT6_E2M3: "float6_e2m3",
    DataType.DT_FLOAT4_E2M1: "float4_e2m1fn",
    DataType.DT_FLOAT4_E1M2: "float4_e1m2",
    DataType.DT_HIFLOAT4: "hifloat4",
    DataType.DT_HIFLOAT4_SCALE: "hifloat4_scale",
}
#: Integers that represent other numbers, by a scale that the dump does not record.
_QUANTIZED = {
    DataType.DT_DUAL_SUB_INT8: "int8",
    DataType.DT_DUAL_SUB_UINT8: "uint8",
    DataType.DT_QINT8: "int8",
    DataType.DT_QINT16: "int16",
    DataType.DT_QINT32: "int32",
    DataType.DT_QUINT8: "uint8",
    DataType.DT_QUINT16: "uint16",
}
_BYTE = from_name("uint8")
#: By code: the element type, and the name in the header if it means something else.
_TYPES: dict[int, tuple[ElementType, str]] = {
    **{code: (from_name(name), "") for code, name in ELEMENT_TYPES.items()},
    **{code: (from_name(name), DataType.Name(code)) for code, name in _QUANTIZED.items()},
}
_TYPE_NAMES: dict[int, str] = {code: name for name, code in DataType.items()}
#: The names of all memory formats.
FORMAT_NAMES: frozenset[str] = frozenset(name.removeprefix("FORMAT_") for name, _ in Format.items())
_FORMATS: dict[int, str] = {code: name.removeprefix("FORMAT_") for name, code in Format.items()}
#: Formats whose elements are in the order of the axes. For a tensor that is not 4-D, `NCHW` means `ND`.
_PLAIN = frozenset(
    [
        *("ND", "MD", "CN", "NC", "NCL", "NCHW", "NHWC", "CHWN", "HWCN", "NCDHW", "NDHWC", "DHWCN", "DHWNC"),
        *("RESERVED", "ALL", "NULL", "MAX"),
    ]
)

#: Cached, because a dump has many files and few layouts.
_convertible = lru_cache(maxsize=4096)(device_format.convertible)

Described: TypeAlias = OpInput | OpOutput
"""A message with a type and a shape."""
Item: TypeAlias = OpInput | OpOutput | OpBuffer | Workspace
"""A message with a payload."""


class Meaning(NamedTuple):
    """What the bytes of one tensor mean."""

    element: ElementType
    shape: tuple[int, ...]
    nbytes: int
    """Bytes of the payload, without padding."""
    device: DeviceLayout | None = None
    declared_dtype: str = ""
    problem: str = ""


def interpret(io: str, slot: int, item: Item, size: int) -> Meaning:
    """Interpret the bytes of one tensor.

    Args:
        io: `input`, `output`, `buffer` or `space`, for error messages.
        slot: its number, for error messages.
        item: its message in the header.
        size: its bytes in the file.

    Raises:
        UnreadableTensor: type, shape and size contradict one another.
    """
    if isinstance(item, OpBuffer | Workspace):
        return Meaning(_BYTE, (size,), size)
    known = _TYPES.get(item.data_type)
    if known is None:
        return _of_unknown_type(item, size)
    element, declared = known
    device_shape = _lengths(item.shape.dim)
    if not size and (item.size or (device_shape and math.prod(device_shape))):
        return _not_dumped(item, element, declared)
    if not device_shape:
        shape, problem = _shape_by_size(item, element, size)
        return Meaning(element, shape, element.nbytes(math.prod(shape)), None, declared, problem)
    meaning = _with_device_shape((io, slot), item, size, element, device_shape)
    return meaning if meaning.declared_dtype or not declared else meaning._replace(declared_dtype=declared)


def original_of(item: Item) -> str:
    """Return, as a record, the operator of the model and its output that a tensor is; "" if not known.

    Operators of the model that were fused into one have its name no more: the last of them has its outputs.
    """
    if not isinstance(item, OpOutput) or not item.original_op.name:
        return ""
    name = item.original_op.name.decode("utf-8", "replace")
    original = {"name": name, "output": item.original_op.output_index}
    return json.dumps({"tensor": {"original_op": original}})


def format_name(item: Item) -> str:
    """Return the name of the memory format; "" if there is none."""
    if isinstance(item, OpBuffer | Workspace):
        return ""
    # Some writers leave GE's encoding in it: sub-format and C0 in the higher bytes (GE, types.h).
    code = item.format & 0xFF
    return _FORMATS.get(code) or f"format {code}"


def _with_device_shape(
    place: tuple[str, int],
    item: Described,
    size: int,
    element: ElementType,
    device_shape: tuple[int, ...],
) -> Meaning:
    if not is_addressable(device_shape, element.itemsize):
        raise UnreadableTensor(f"{place[0]} {place[1]} has a shape of more bytes than there are addresses")
    nbytes = element.nbytes(math.prod(device_shape))
    if nbytes <= size <= nbytes + MAX_PADDING_BYTES:
        shape, layout, problem = _host_shape(item, element, device_shape)
        return Meaning(element, shape, nbytes, layout, "", problem)
    needed = f"the {nbytes} of {element.name}, shape {device_shape}"
    if size > nbytes:
        problem = f"has {size} bytes, far more than {needed}; kept as bytes"
        return Meaning(_BYTE, (size,), size, None, _TYPE_NAMES[item.data_type], problem)
    if not element.is_opaque:
        raise UnreadableTensor(f"{place[0]} {place[1]} has {size} bytes, fewer than {needed}")
    problem = f"has {size} bytes, fewer than {needed}; the packing of this type is not known"
    return Meaning(element, (size,), size, problem=problem)


def _host_shape(
    item: Described, element: ElementType, device_shape: tuple[int, ...]
) -> tuple[tuple[int, ...], DeviceLayout | None, str]:
    """Return the shape to present, the layout that the payload has if it differs, and what is wrong."""
    if not item.HasField("original_shape"):
        return device_shape, None, ""
    host_shape = _original_shape(item, element)
    if not host_shape:
        return _shape_of_unknown(host_shape, device_shape), None, ""
    name = format_name(item)
    is_plain = name in _PLAIN
    if is_plain and host_shape == device_shape:
        return host_shape, None, ""
    layout = DeviceLayout(name, device_shape, _groups(item, name))
    if _convertible(layout, host_shape, element):
        return host_shape, layout, ""
    if host_shape == device_shape or (is_plain and math.prod(host_shape) == math.prod(device_shape)):
        return host_shape, None, ""
    return device_shape, None, f"kept in device shape: {name} does not convert it to {host_shape}"


def _original_shape(item: Described, element: ElementType) -> tuple[int, ...] | None:
    """Return the shape as the framework sees it; None if it is not known, or cannot be that of an array."""
    shape = _lengths(item.original_shape.dim)
    return shape if shape is not None and is_addressable(shape, element.itemsize) else None


def _shape_of_unknown(host_shape: tuple[int, ...] | None, device_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor whose host shape is not known, or empty: either a scalar, or not known."""
    return () if host_shape == () and device_shape == (1,) else device_shape


def _groups(item: Described, format_of_item: str) -> int:
    """Return the groups of a convolution, which only weights have."""
    if not format_of_item.startswith("FRACTAL_Z"):
        return 1
    return max(item.sub_format, item.format >> 8 & 0xFFFF, 1)


def _shape_by_size(item: Described, element: ElementType, size: int) -> tuple[tuple[int, ...], str]:
    """Return the shape of a tensor whose device shape is empty or unknown, and what is wrong."""
    problem = f"its shape {_signed(item.shape.dim)} is not known" if item.shape.dim else ""
    host_shape = _original_shape(item, element)
    if host_shape and format_name(item) in _PLAIN and element.nbytes(math.prod(host_shape)) == size:
        return host_shape, problem
    if size == element.itemsize and not problem:
        return (), problem
    return (size * 8 // element.bits,), problem


def _of_unknown_type(item: Described, size: int) -> Meaning:
    declared = _TYPE_NAMES.get(item.data_type) or f"data_type {item.data_type}"
    if item.size and not size:
        return _not_dumped(item, _BYTE, declared)
    return Meaning(_BYTE, (size,), size, declared_dtype=declared)


def _not_dumped(item: Described, element: ElementType, declared: str) -> Meaning:
    reason = "the file has no bytes of it" if item.address else "it had no device memory"
    problem = f"not dumped: {reason} (shape {_signed(item.shape.dim)}, {item.size} bytes)"
    return Meaning(element, (0,), 0, None, declared, problem)


def _lengths(dims: Sequence[int]) -> tuple[int, ...] | None:
    """Return the lengths of axes; None if a length is not known, or there are too many to be true."""
    if len(dims) > MAX_NDIM:
        return None
    lengths = tuple(dims)
    return None if lengths and max(lengths) >= 2**62 else lengths


def _signed(dims: Sequence[int]) -> str:
    """Return lengths of axes as their writer meant them, where -1 means unknown."""
    shown = [str(n - 2**64 if n >= 2**63 else n) for n in dims[:8]]
    return f"({', '.join(shown)}{', ...' if len(dims) > len(shown) else ''})"
