"""The dump files of Ascend CANN ("DumpData"): a protobuf header, and the payloads behind it.

    8 bytes   length of the header, unsigned, little-endian
    header    message DumpData of `dump_data.proto`
    payload   inputs, outputs, buffers, spaces, each exactly as many bytes as the header says

Source: CANN runtime, `dump_task.cpp` and `dump_file.cpp`; msProbe, `big_dump_data.py`. A file is whole when
its size is the sum of all that. Files of "version 1" (2020) are one protobuf message with the payloads inside
it; such a file that was cut between two tensors cannot be told from a whole one.

Exception dumps put the payloads of some additional inputs last. Their header does not say which, so the
payloads of such a file are assigned in the usual order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from workers.dump.formats.header import MAX_NDIM, ReadAt, TensorHeader, Truncated
from workers.dump.formats.wire import LENGTH_DELIMITED, Field, FieldWalk, varint
from workers.errors import UnreadableTensor

#: Longest header accepted, in bytes. Of a file of version 1, all of it but its payloads.
MAX_HEADER_BYTES = 16 * 2**20
#: Most fields accepted, in bytes of the header that stand for objects in memory.
MAX_FIELDS = 2**16
#: Bytes behind the elements of a tensor up to which they are taken for padding.
MAX_PADDING_BYTES = 64 * 2**10
_MAX_NAME_BYTES = 64 * 2**10
_LENGTH_BYTES = 8
_FIRST_READ = 4096
#: Stands behind the length in the files of Nano devices, which hold no protobuf.
_NANO_MAGIC = b"\x5a\x5a\x5a\x5a"
#: With which a file of version 1 may begin: the tags of version, dump_time, output and input.
_VERSION_1_TAGS = b"\x0a\x10\x1a\x22"

#: Our names of the data types of the header; of those that are not here, the bytes are kept.
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
#: Integers that stand for other numbers, by a scale that the dump does not tell.
_STANDS_FOR = {
    DataType.DT_DUAL_SUB_INT8: "int8",
    DataType.DT_DUAL_SUB_UINT8: "uint8",
    DataType.DT_QINT8: "int8",
    DataType.DT_QINT16: "int16",
    DataType.DT_QINT32: "int32",
    DataType.DT_QUINT8: "uint8",
    DataType.DT_QUINT16: "uint16",
}
_BYTE = from_name("uint8")
#: By code: the element type, and what the header calls it where that is something else.
_TYPES: dict[int, tuple[ElementType, str]] = {
    **{code: (from_name(name), "") for code, name in ELEMENT_TYPES.items()},
    **{code: (from_name(name), DataType.Name(code)) for code, name in _STANDS_FOR.items()},
}
_TYPE_NAMES: dict[int, str] = {code: name for name, code in DataType.items()}
#: The names of all memory formats.
FORMAT_NAMES: frozenset[str] = frozenset(name.removeprefix("FORMAT_") for name, _ in Format.items())
_FORMATS: dict[int, str] = {code: name.removeprefix("FORMAT_") for name, code in Format.items()}
#: Formats whose elements lie in the order of the axes. On a tensor that is not 4-D, `NCHW` means `ND`.
_PLAIN = frozenset(
    [
        *("ND", "MD", "CN", "NC", "NCL", "NCHW", "NHWC", "CHWN", "HWCN", "NCDHW", "NDHWC", "DHWCN", "DHWNC"),
        *("RESERVED", "ALL", "NULL", "MAX"),
    ]
)

#: A dump has many files and few layouts.
_convertible = lru_cache(maxsize=4096)(device_format.convertible)

_Described: TypeAlias = OpInput | OpOutput
_Item: TypeAlias = OpInput | OpOutput | OpBuffer | Workspace


class _Part(NamedTuple):
    """One tensor of a header, and where the file has its bytes."""

    io: str
    slot: int
    item: _Item
    offset: int
    size: int
    """Bytes in the file."""


class _Meaning(NamedTuple):
    """What the bytes of one tensor are."""

    element: ElementType
    shape: tuple[int, ...]
    nbytes: int
    """Bytes of the payload, without padding."""
    device: DeviceLayout | None = None
    declared_dtype: str = ""
    problem: str = ""


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the tensors of a DumpData file, in the order of their payloads. Payloads are not read.

    - A tensor that has a size and no bytes in the file (it had no device memory) is returned with shape
      `(0,)`, `nbytes` 0 and a `problem` that gives its real shape. It must not be taken for zeros.
    - A type that is not known, or has no fixed size, makes a tensor of bytes; `declared_dtype` says which it
      was.
    - `shape` is the host shape where the device shape can be brought to it, and the device shape otherwise.
    - Buffers and spaces are tensors of bytes; `io` is `buffer` or `space`.
    - Bytes behind the elements of a tensor (padding) go into the `lead` of the next one, or into the `tail`.

    A file that lists no tensor at all gives an empty tuple: only the file itself can be kept.

    Args:
        read: reads the file.
        file_size: its size in bytes, with which the header must agree.

    Raises:
        Truncated: the file is shorter than its header says.
        UnreadableTensor: it is no such file, is damaged, or longer than its header says.
    """
    head = read(0, min(file_size, _FIRST_READ))
    if len(head) <= _LENGTH_BYTES:
        raise Truncated(f"{len(head)} bytes, less than a DumpData header")
    if head.startswith(_NANO_MAGIC, _LENGTH_BYTES):
        raise UnreadableTensor("a dump of a Nano device, whose format is not supported")
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        if head[0] in _VERSION_1_TAGS:
            return _read_version_1(read, file_size)
        raise UnreadableTensor(
            f"no DumpData file, or a header of {length} bytes; more than {MAX_HEADER_BYTES} are refused"
        )
    begin = _LENGTH_BYTES + length
    if begin > file_size:
        raise Truncated(f"{file_size} bytes, less than its DumpData header of {begin}")
    if begin > len(head):
        head += read(len(head), begin - len(head))
        if begin > len(head):
            raise Truncated(f"{len(head)} bytes, less than its DumpData header of {begin}")
    header = head[_LENGTH_BYTES:begin]
    # Counts the fields, which must come before the parsing.
    for _ in FieldWalk(lambda at, n: header[at : at + n], limit=MAX_FIELDS).fields(0, length):
        pass
    message = _parse(header)
    return _headers(message, _place(message, begin, file_size), read, file_size, head[:begin])


def _parse(header: bytes) -> DumpData:
    try:
        return DumpData.FromString(header)
    except DecodeError as exc:
        raise UnreadableTensor("its protobuf header is damaged") from exc


def _place(message: DumpData, begin: int, file_size: int) -> Iterator[_Part]:
    """Yield all tensors of a file with payloads behind its header, which must have just the right size."""
    announced = begin + sum(item.size for _, _, item in _items(message))
    skip_absent = False
    if file_size < announced:
        # Newer writers skip what had no device memory; older ones write no address at all.
        tensors: list[_Described] = [*message.input, *message.output]
        absent = sum(item.size for item in tensors if not item.address)
        skip_absent = any(item.address for item in tensors) and file_size == announced - absent
    if file_size < announced and not skip_absent:
        raise Truncated(f"{file_size} bytes, but its header announces {announced} ({_inventory(message)})")
    if file_size > announced:
        raise UnreadableTensor(
            f"{file_size} bytes, but its header accounts for only {announced} ({_inventory(message)})"
        )
    offset = begin
    for io, slot, item in _items(message):
        absent_here = skip_absent and isinstance(item, OpInput | OpOutput) and not item.address
        size = 0 if absent_here else item.size
        yield _Part(io, slot, item, offset, size)
        offset += size


def _items(message: DumpData) -> Iterator[tuple[str, int, _Item]]:
    """Yield io, slot and message of all tensors in the order of their payloads."""
    for slot, item in enumerate(message.input):
        yield "input", slot, item
    for slot, output in enumerate(message.output):
        yield "output", slot, output
    for slot, buffer in enumerate(message.buffer):
        yield "buffer", slot, buffer
    for slot, space in enumerate(message.space):
        yield "space", slot, space


def _inventory(message: DumpData) -> str:
    return f"{len(message.input)} inputs, {len(message.output)} outputs"


#: By number of a field of DumpData: its name, and the number of `data` in its message.
_WITH_DATA = {
    DumpData.OUTPUT_FIELD_NUMBER: ("output", OpOutput.DATA_FIELD_NUMBER),
    DumpData.INPUT_FIELD_NUMBER: ("input", OpInput.DATA_FIELD_NUMBER),
    DumpData.BUFFER_FIELD_NUMBER: ("buffer", OpBuffer.DATA_FIELD_NUMBER),
    DumpData.SPACE_FIELD_NUMBER: ("space", Workspace.DATA_FIELD_NUMBER),
}


def _read_version_1(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the tensors of a file that is one message, with the payloads in its `data` fields."""
    header, places = _without_payloads(read, file_size)
    if not any(places.values()):
        raise Truncated(f"{file_size} bytes of a DumpData file of version 1, which have no tensor")
    message = _parse(header)
    parts = []
    for io, slot, item in _items(message):
        offset, nbytes = places[io][slot]
        if nbytes and item.size not in {0, nbytes}:
            raise UnreadableTensor(f"{io} {slot} has {nbytes} bytes, but its header says {item.size}")
        parts.append(_Part(io, slot, item, offset, nbytes))
    parts.sort(key=lambda part: part.offset)
    return _headers(message, parts, read, file_size, b"")


_Places: TypeAlias = dict[str, list[tuple[int, int]]]


def _without_payloads(read: ReadAt, file_size: int) -> tuple[bytes, _Places]:
    """Return a message without its `data` fields; and of each tensor, offset and length of that field."""
    walk = FieldWalk(read, limit=MAX_FIELDS)
    header = bytearray()
    places: _Places = {io: [] for io, _ in _WITH_DATA.values()}

    left = MAX_HEADER_BYTES

    def take(field: Field) -> bytes:
        nonlocal left
        length = field.end - field.begin
        left -= length
        if left < 0:
            raise UnreadableTensor(f"more than {MAX_HEADER_BYTES} bytes beside the payloads")
        taken = read(field.begin, length)
        if len(taken) != length:
            raise Truncated(f"the file ends before byte {field.end}, inside its protobuf header")
        return taken

    for field in walk.fields(0, file_size, short=Truncated):
        if field.number not in _WITH_DATA or field.wire_type != LENGTH_DELIMITED:
            header += take(field)
            continue
        io, data_number = _WITH_DATA[field.number]
        place = (field.end, 0)
        body = bytearray()
        for inner in walk.fields(field.value, field.end):
            if inner.number == data_number and inner.wire_type == LENGTH_DELIMITED:
                place = (inner.value, inner.end - inner.value)
            else:
                body += take(inner)
        places[io].append(place)
        header += varint(field.number << 3 | LENGTH_DELIMITED) + varint(len(body)) + body
    return bytes(header), places


def _headers(
    message: DumpData, parts: Sequence[_Part] | Iterator[_Part], read: ReadAt, file_size: int, head: bytes
) -> tuple[TensorHeader, ...]:
    """Return the headers of all tensors, given where they are and the beginning of the file."""
    if len(message.op_name) > _MAX_NAME_BYTES:
        raise UnreadableTensor(f"an operator name of {len(message.op_name)} bytes")
    full_name = message.op_name.decode("utf-8", "replace")

    def between(begin: int, end: int) -> bytes:
        found = head[begin:end] if end <= len(head) else read(begin, end - begin)
        if len(found) != end - begin:
            raise Truncated(f"the file ends before byte {end}; it had {file_size} bytes")
        return found

    headers: list[TensorHeader] = []
    behind = 0  # where the payload before ends
    all_parts = tuple(parts)
    # Each tensor carries the name: many without bytes would make far more of it than the file has.
    if len(message.op_name) * len(all_parts) > _MAX_NAME_BYTES + 16 * file_size:
        raise UnreadableTensor(
            f"an operator name of {len(message.op_name)} bytes for each of {len(all_parts)} tensors, "
            f"in a file of {file_size} bytes"
        )
    for part in all_parts:
        meaning = _interpret(part)
        end = part.offset + meaning.nbytes
        headers.append(
            TensorHeader(
                element=meaning.element,
                shape=meaning.shape,
                offset=part.offset,
                nbytes=meaning.nbytes,
                lead=between(behind, part.offset) if part.offset > behind else b"",
                tail=between(end, file_size) if part is all_parts[-1] and end < file_size else b"",
                device=meaning.device,
                io=part.io,
                slot=part.slot,
                full_name=full_name,
                format=_format(part.item) if isinstance(part.item, OpInput | OpOutput) else "",
                declared_dtype=meaning.declared_dtype,
                problem=meaning.problem,
            )
        )
        behind = end
    return tuple(headers)


def _format(item: _Described) -> str:
    # Some writers leave the encoding of GE in it: sub-format and C0 in the higher bytes (GE, types.h).
    code = item.format & 0xFF
    return _FORMATS.get(code) or f"format {code}"


def _groups(item: _Described) -> int:
    """Return the groups of a convolution, which only weights have."""
    return max(item.sub_format, item.format >> 8 & 0xFFFF, 1)


def _interpret(part: _Part) -> _Meaning:
    item, size = part.item, part.size
    if isinstance(item, OpBuffer | Workspace):
        return _Meaning(_BYTE, (size,), size)
    known = _TYPES.get(item.data_type)
    if known is None:
        declared = _TYPE_NAMES.get(item.data_type) or f"data_type {item.data_type}"
        if item.size and not size:
            return _absent(item, _BYTE, declared)
        return _Meaning(_BYTE, (size,), size, declared_dtype=declared)
    element, declared = known
    device_shape = _lengths(item.shape.dim)
    if not size and (item.size or (device_shape and math.prod(device_shape))):
        return _absent(item, element, declared)
    if not device_shape:
        shape, problem = _shape_by_size(item, element, size)
        return _Meaning(element, shape, element.nbytes(math.prod(shape)), None, declared, problem)
    return _shaped(part, item, element, declared, device_shape)


def _shaped(
    part: _Part, item: _Described, element: ElementType, declared: str, device_shape: tuple[int, ...]
) -> _Meaning:
    """Interpret a tensor whose device shape is known."""
    size, count = part.size, math.prod(device_shape)
    # Of zero elements too: numpy could not make an array of that shape.
    if math.prod(n for n in device_shape if n) * element.itemsize >= 2**63:
        raise UnreadableTensor(f"{part.io} {part.slot} has a shape of more bytes than there are addresses")
    nbytes = element.nbytes(count)
    what = f"{element.name}, shape {device_shape}"
    if nbytes > size:
        if not element.is_opaque:
            raise UnreadableTensor(
                f"{part.io} {part.slot} has {size} bytes, less than the {nbytes} of {what}"
            )
        problem = f"{size} bytes, less than the {nbytes} of {what}; the packing of this type is not known"
        return _Meaning(element, (size,), size, None, declared, problem)
    if size - nbytes > MAX_PADDING_BYTES:
        problem = f"{size} bytes, far more than the {nbytes} of {what}; kept as bytes"
        return _Meaning(_BYTE, (size,), size, None, declared or _TYPE_NAMES[item.data_type], problem)
    shape, layout, problem = _host_shape(item, element, device_shape)
    return _Meaning(element, shape, nbytes, layout, declared, problem)


def _host_shape(
    item: _Described, element: ElementType, device_shape: tuple[int, ...]
) -> tuple[tuple[int, ...], DeviceLayout | None, str]:
    """Return the shape to present, how the payload gets there, and what is wrong."""
    host_shape = _lengths(item.original_shape.dim) if item.HasField("original_shape") else device_shape
    if not host_shape:
        # Empty stands for a scalar as well as for nothing known.
        scalar = host_shape == () and device_shape == (1,)
        return () if scalar else device_shape, None, ""
    name = _format(item)
    if host_shape == device_shape and (name in _PLAIN or not item.HasField("original_shape")):
        return host_shape, None, ""
    groups = _groups(item) if name.startswith("FRACTAL_Z") else 1
    layout = DeviceLayout(name, device_shape, groups)
    if _convertible(layout, host_shape, element):
        return host_shape, layout, ""
    if host_shape == device_shape:
        return host_shape, None, ""
    if name in _PLAIN and math.prod(host_shape) == math.prod(device_shape):
        return host_shape, None, ""
    return device_shape, None, f"kept in device shape, from which {name} does not lead to {host_shape}"


def _shape_by_size(item: _Described, element: ElementType, size: int) -> tuple[tuple[int, ...], str]:
    """Return the shape of a tensor whose device shape is empty or unknown, and what is wrong."""
    problem = f"its shape {_signed(item.shape.dim)} is not known" if item.shape.dim else ""
    host_shape = _lengths(item.original_shape.dim)
    if host_shape and _format(item) in _PLAIN and element.nbytes(math.prod(host_shape)) == size:
        return host_shape, problem
    if size == element.itemsize and not problem:
        return (), problem
    return (size * 8 // element.bits,), problem


def _absent(item: _Described, element: ElementType, declared: str) -> _Meaning:
    reason = "no bytes of it are in the file" if item.address else "it had no device memory"
    problem = f"not dumped: {reason} (shape {_signed(item.shape.dim)}, {item.size} bytes)"
    return _Meaning(element, (0,), 0, None, declared, problem)


def _lengths(dims: Sequence[int]) -> tuple[int, ...] | None:
    """Return the lengths of axes; None where one is not known, or there are too many to be true."""
    if len(dims) > MAX_NDIM:
        return None
    lengths = tuple(dims)
    return None if lengths and max(lengths) >= 2**62 else lengths


def _signed(dims: Sequence[int]) -> str:
    """Show lengths of axes as their writer meant them: -1 is not known."""
    shown = [str(n - 2**64 if n >= 2**63 else n) for n in dims[:8]]
    return f"({', '.join(shown)}{', ...' if len(dims) > len(shown) else ''})"
