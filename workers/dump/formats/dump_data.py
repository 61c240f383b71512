"""The dump files of Ascend CANN ("DumpData"): a protobuf header, followed by payloads.

    8 bytes   length of the header, unsigned, little-endian
    header    message DumpData of `dump_data.proto`
    payload   inputs, outputs, buffers, spaces, each of exactly the size that the header gives

Source: CANN runtime, `dump_task.cpp` and `dump_file.cpp`; msProbe, `big_dump_data.py`. A file is complete if
its size is the sum of all parts. A file of "version 1" (2020) is one protobuf message that contains the
payloads; if it was cut between two tensors, it cannot be distinguished from a complete one.

Exception dumps put the payloads of some additional inputs last. Their header does not say of which, so the
payloads of such a file are assigned in the usual order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from workers.arrays import device_format
from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import ElementType, from_name
from workers.dump.formats.dump_data_pb2 import (
    DataType,
    DumpData,
    Format,
    OpBuffer,
    OpInput,
    OpOutput,
    Workspace,
)
from workers.dump.formats.header import (
    MAX_NDIM,
    ReadAt,
    TensorHeader,
    Truncated,
    is_addressable,
    read_exactly,
)
from workers.dump.formats.tensor_proto import LENGTH_DELIMITED, FieldWalk, WireField, varint
from workers.errors import UnreadableTensor
from workers.model import counted

#: The longest header that is accepted, in bytes. For a file of version 1, everything except its payloads.
MAX_HEADER_BYTES = 16 * 2**20
#: The most fields that are accepted in a header: each becomes an object in memory.
MAX_FIELDS = 2**16
_MAX_NAME_BYTES = 64 * 2**10
_LENGTH_BYTES = 8
_FIRST_READ = 4096
#: Follows the length in files of Nano devices, which hold no protobuf.
_NANO_MAGIC = b"\x5a\x5a\x5a\x5a"
#: The first byte of a file of version 1 is one of these: the tags of version, dump_time, output and input.
_VERSION_1_TAGS = b"\x0a\x10\x1a\x22"
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


class _PlacedItem(NamedTuple):
    io: str
    slot: int
    item: Item
    offset: int
    size: int


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the tensors of a DumpData file, in the order of their payloads. Payloads are not read.

    - A tensor that has a size but no bytes in the file (it had no device memory) is returned with shape
      `(0,)`, `nbytes` 0 and a `problem` that gives its real shape. It must not be taken for zeros.
    - A tensor whose type is not known, or has no fixed size, becomes a tensor of bytes; `declared_dtype` has
      the type.
    - `shape` is the host shape if the device shape can be converted to it, otherwise the device shape.
    - Buffers and spaces are tensors of bytes; `io` is `buffer` or `space`.
    - Bytes after the elements of a tensor (padding) are in the `lead` of the next one, or in the `tail`.

    For a file that lists no tensor the result is empty: only the file itself can be kept.

    Args:
        read: reads the file.
        file_size: its size in bytes, with which the header must agree.

    Raises:
        Truncated: the file is shorter than its header says.
        UnreadableTensor: it is not a DumpData file, is damaged, or is longer than its header says.
    """
    head = read(0, min(file_size, _FIRST_READ))
    if len(head) <= _LENGTH_BYTES:
        raise Truncated(f"has {len(head)} bytes, fewer than a DumpData header")
    if head.startswith(_NANO_MAGIC, _LENGTH_BYTES):
        raise UnreadableTensor("is a dump of a Nano device, whose format is not supported")
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        if head[0] in _VERSION_1_TAGS:
            return _read_version_1(read, file_size)
        raise UnreadableTensor(
            f"is not a DumpData file, or has a header of {length} bytes, more than {MAX_HEADER_BYTES}"
        )
    begin = _LENGTH_BYTES + length
    if begin > file_size:
        raise Truncated(f"has {file_size} bytes, fewer than the {begin} of its DumpData header")
    if begin > len(head):
        head += read_exactly(read, len(head), begin - len(head))
    header = head[_LENGTH_BYTES:begin]
    # Fields are counted first, because parsing would make an object of each.
    for _ in FieldWalk(lambda at, n: header[at : at + n], limit=MAX_FIELDS).fields(0, length):
        pass
    message = _parse(header)
    placed = _place(message, begin, skips_absent=_skips_absent(message, begin, file_size))
    return _headers(message, placed, read, file_size, head[:begin])


def _place(message: DumpData, begin: int, *, skips_absent: bool) -> list[_PlacedItem]:
    placed: list[_PlacedItem] = []
    offset = begin
    for io, slot, item in _items(message):
        size = 0 if skips_absent and _is_absent(item) else item.size
        placed.append(_PlacedItem(io, slot, item, offset, size))
        offset += size
    return placed


def _parse(header: bytes) -> DumpData:
    try:
        return DumpData.FromString(header)
    except DecodeError as exc:
        raise UnreadableTensor("its protobuf header is damaged") from exc


def _skips_absent(message: DumpData, begin: int, file_size: int) -> bool:
    """Return whether the file leaves out tensors without device memory, which shows in its size."""
    announced = begin + sum(item.size for _, _, item in _items(message))
    inventory = f"{counted(len(message.input), 'input')}, {counted(len(message.output), 'output')}"
    if file_size > announced:
        raise UnreadableTensor(
            f"has {file_size} bytes, but its header accounts for only {announced} ({inventory})"
        )
    if file_size == announced:
        return False
    # Newer writers leave them out. Older writers do not, and write no address at all.
    tensors: list[Described] = [*message.input, *message.output]
    absent = sum(item.size for item in tensors if _is_absent(item))
    if file_size != announced - absent or all(map(_is_absent, tensors)):
        raise Truncated(f"has {file_size} bytes, but its header announces {announced} ({inventory})")
    return True


def _is_absent(item: Item) -> bool:
    return isinstance(item, OpInput | OpOutput) and not item.address


def _items(message: DumpData) -> Iterator[tuple[str, int, Item]]:
    groups: tuple[tuple[str, Iterable[Item]], ...] = (
        ("input", message.input),
        ("output", message.output),
        ("buffer", message.buffer),
        ("space", message.space),
    )
    for io, items in groups:
        for slot, item in enumerate(items):
            yield io, slot, item


#: By number of a field of DumpData: its name, and the number of the field `data` in its message.
_WITH_DATA = {
    DumpData.OUTPUT_FIELD_NUMBER: ("output", OpOutput.DATA_FIELD_NUMBER),
    DumpData.INPUT_FIELD_NUMBER: ("input", OpInput.DATA_FIELD_NUMBER),
    DumpData.BUFFER_FIELD_NUMBER: ("buffer", OpBuffer.DATA_FIELD_NUMBER),
    DumpData.SPACE_FIELD_NUMBER: ("space", Workspace.DATA_FIELD_NUMBER),
}


def _read_version_1(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the tensors of a file that is one message, with payloads in its `data` fields."""
    header, places = _without_payloads(read, file_size)
    if not any(places.values()):
        raise Truncated(f"has {file_size} bytes of a DumpData file of version 1, but no tensor")
    message = _parse(header)
    parts = []
    for io, slot, item in _items(message):
        offset, nbytes = places[io][slot]
        if nbytes and item.size not in {0, nbytes}:
            raise UnreadableTensor(f"{io} {slot} has {nbytes} bytes, but its header says {item.size}")
        parts.append(_PlacedItem(io, slot, item, offset, nbytes))
    return _headers(message, sorted(parts, key=lambda part: part.offset), read, file_size, b"")


_Places: TypeAlias = dict[str, list[tuple[int, int]]]


def _without_payloads(read: ReadAt, file_size: int) -> tuple[bytes, _Places]:
    """Return a message without its `data` fields; and for each tensor, offset and length of that field."""
    walk = FieldWalk(read, limit=MAX_FIELDS)
    header = bytearray()
    places: _Places = {io: [] for io, _ in _WITH_DATA.values()}

    left = MAX_HEADER_BYTES

    def content(field: WireField) -> bytes:
        nonlocal left
        length = field.end - field.begin
        left -= length
        if left < 0:
            raise UnreadableTensor(f"has more than {MAX_HEADER_BYTES} bytes besides the payloads")
        return read_exactly(read, field.begin, length)

    for field in walk.fields(0, file_size, short=Truncated):
        if field.number not in _WITH_DATA or field.wire_type != LENGTH_DELIMITED:
            header += content(field)
            continue
        io, data_number = _WITH_DATA[field.number]
        place = (field.end, 0)
        body = bytearray()
        for inner in walk.fields(field.value, field.end):
            if inner.number == data_number and inner.wire_type == LENGTH_DELIMITED:
                place = (inner.value, inner.end - inner.value)
            else:
                body += content(inner)
        places[io].append(place)
        header += varint(field.number << 3 | LENGTH_DELIMITED) + varint(len(body)) + body
    return bytes(header), places


def _headers(
    message: DumpData, items: Sequence[_PlacedItem], read: ReadAt, file_size: int, head: bytes
) -> tuple[TensorHeader, ...]:
    """Return the headers of all tensors, given where they are and the beginning of the file."""
    if len(message.op_name) > _MAX_NAME_BYTES:
        raise UnreadableTensor(f"has an operator name of {len(message.op_name)} bytes")
    full_name = message.op_name.decode("utf-8", "replace")

    def between(begin: int, end: int) -> bytes:
        return head[begin:end] if end <= len(head) else read_exactly(read, begin, end - begin)

    headers: list[TensorHeader] = []
    previous_end = 0  # of the previous payload
    # Each tensor carries the name: many tensors without bytes would take far more memory than the file has.
    if len(message.op_name) * len(items) > _MAX_NAME_BYTES + 16 * file_size:
        raise UnreadableTensor(
            f"has an operator name of {len(message.op_name)} bytes for each of {len(items)} tensors, "
            f"in a file of {file_size} bytes"
        )
    for placed in items:
        meaning = _interpret(placed.io, placed.slot, placed.item, placed.size)
        end = placed.offset + meaning.nbytes
        headers.append(
            meaning._replace(
                offset=placed.offset,
                lead=between(previous_end, placed.offset) if placed.offset > previous_end else b"",
                tail=between(end, file_size) if placed is items[-1] and end < file_size else b"",
                io=placed.io,
                slot=placed.slot,
                full_name=full_name,
                format=_format_name(placed.item),
                record=_original_of(placed.item),
            )
        )
        previous_end = end
    return tuple(headers)


def _interpret(io: str, slot: int, item: Item, size: int) -> TensorHeader:
    """Return what the bytes of a payload mean, whose place in the file and envelope are left out."""
    if isinstance(item, OpBuffer | Workspace):
        return TensorHeader(_BYTE, (size,), 0, size)
    is_known = item.data_type in _TYPES
    unknown = _TYPE_NAMES.get(item.data_type) or f"data_type {item.data_type}"
    element, declared = _TYPES.get(item.data_type, (_BYTE, unknown))
    device_shape = _lengths(item.shape.dim)
    if not size and (item.size or (is_known and device_shape and math.prod(device_shape))):
        reason = "the file has no bytes of it" if item.address else "it had no device memory"
        problem = f"not dumped: {reason} (shape {_signed(item.shape.dim)}, {item.size} bytes)"
        return TensorHeader(element, (0,), 0, 0, declared_dtype=declared, problem=problem)
    if not is_known:
        return TensorHeader(element, (size,), 0, size, declared_dtype=declared)
    if not device_shape:
        shape, problem = _shape_by_size(item, element, size)
        nbytes = element.nbytes(math.prod(shape))
        return TensorHeader(element, shape, 0, nbytes, declared_dtype=declared, problem=problem)
    meaning = _with_device_shape(f"{io} {slot}", item, size, element, device_shape)
    return meaning if meaning.declared_dtype else meaning._replace(declared_dtype=declared)


def _original_of(item: Item) -> str:
    """Return, as a record, the operator of the model and its output that a tensor is; "" if not known.

    Operators of the model that were fused into one have its name no more: the last of them has its outputs.
    """
    if not isinstance(item, OpOutput) or not item.original_op.name:
        return ""
    name = item.original_op.name.decode("utf-8", "replace")
    original = {"name": name, "output": item.original_op.output_index}
    return json.dumps({"tensor": {"original_op": original}})


def _format_name(item: Item) -> str:
    if isinstance(item, OpBuffer | Workspace):
        return ""
    # Some writers leave GE's encoding in it: sub-format and C0 in the higher bytes (GE, types.h).
    code = item.format & 0xFF
    return _FORMATS.get(code) or f"format {code}"


def _with_device_shape(
    name: str,
    item: Described,
    size: int,
    element: ElementType,
    device_shape: tuple[int, ...],
) -> TensorHeader:
    if not is_addressable(device_shape, element.itemsize):
        raise UnreadableTensor(f"{name} has a shape of more bytes than there are addresses")
    nbytes = element.nbytes(math.prod(device_shape))
    if nbytes <= size <= nbytes + MAX_PADDING_BYTES:
        shape, layout, problem = _host_shape(item, element, device_shape)
        return TensorHeader(element, shape, 0, nbytes, device=layout, problem=problem)
    needed = f"the {nbytes} of {element.name}, shape {device_shape}"
    if size > nbytes:
        problem = f"has {size} bytes, far more than {needed}; kept as bytes"
        declared = _TYPE_NAMES[item.data_type]
        return TensorHeader(_BYTE, (size,), 0, size, declared_dtype=declared, problem=problem)
    if not element.is_opaque:
        raise UnreadableTensor(f"{name} has {size} bytes, fewer than {needed}")
    problem = f"has {size} bytes, fewer than {needed}; the packing of this type is not known"
    return TensorHeader(element, (size,), 0, size, problem=problem)


def _host_shape(
    item: Described, element: ElementType, device_shape: tuple[int, ...]
) -> tuple[tuple[int, ...], DeviceLayout | None, str]:
    """Return the shape to present, the layout that the payload has if it differs, and what is wrong."""
    if not item.HasField("original_shape"):
        return device_shape, None, ""
    host_shape = _lengths(item.original_shape.dim, element.itemsize)
    if not host_shape:
        # Either a scalar, or not known.
        return () if host_shape == () and device_shape == (1,) else device_shape, None, ""
    name = _format_name(item)
    is_plain = name in _PLAIN
    if is_plain and host_shape == device_shape:
        return host_shape, None, ""
    # Only weights of a convolution have groups.
    groups = max(item.sub_format, item.format >> 8 & 0xFFFF, 1) if name.startswith("FRACTAL_Z") else 1
    layout = DeviceLayout(name, device_shape, groups)
    if _convertible(layout, host_shape, element):
        return host_shape, layout, ""
    if host_shape == device_shape or (is_plain and math.prod(host_shape) == math.prod(device_shape)):
        return host_shape, None, ""
    return device_shape, None, f"kept in device shape: {name} does not convert it to {host_shape}"


def _shape_by_size(item: Described, element: ElementType, size: int) -> tuple[tuple[int, ...], str]:
    """Return the shape of a tensor whose device shape is empty or unknown, and what is wrong."""
    problem = f"its shape {_signed(item.shape.dim)} is not known" if item.shape.dim else ""
    host_shape = _lengths(item.original_shape.dim, element.itemsize)
    if host_shape and _format_name(item) in _PLAIN and element.nbytes(math.prod(host_shape)) == size:
        return host_shape, problem
    if size == element.itemsize and not problem:
        return (), problem
    return (size * 8 // element.bits,), problem


def _lengths(dims: Sequence[int], itemsize: int = 0) -> tuple[int, ...] | None:
    """Return the lengths of axes; None if one is not known, or no array of such elements can have them."""
    lengths = tuple(dims[: MAX_NDIM + 1])
    if len(lengths) > MAX_NDIM or max(lengths, default=0) >= 2**62:
        return None
    return lengths if is_addressable(lengths, itemsize) else None


def _signed(dims: Sequence[int]) -> str:
    """Return lengths of axes as their writer meant them, where -1 means unknown."""
    shown = [str(n - 2**64 if n >= 2**63 else n) for n in dims[:8]]
    return f"({', '.join(shown)}{', ...' if len(dims) > len(shown) else ''})"
