"""Tensors of ONNX: a `TensorProto` message of protobuf, and the wire format of protobuf.

    1 dims   2 data_type   4 float_data   8 name   9 raw_data   10 double_data   14 data_location

(ONNX, `onnx/onnx.proto`; ONNX Runtime, `core/framework/debug_node_inputs_outputs_utils.cc`, which writes the
elements of everything but texts into `raw_data`, little-endian.) Elements that other programs put into fields
of integers, or into another file, are not read.

The wire format is known as far as needed to walk over fields. Groups (wire types 3 and 4), which can be
nested without limit, are refused: the messages that are read here have none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import NamedTuple

from workers.arrays.dtypes import ElementType, from_name
from workers.dump.formats.header import (
    MAX_NDIM,
    HoldsNoTensor,
    PlacedTensor,
    ReadAt,
    TensorHeader,
    Truncated,
    assemble,
    read_exactly,
    refuse_impossible,
)
from workers.errors import UnreadableTensor

LENGTH_DELIMITED = 2
_VARINT, _FIXED_64, _FIXED_32 = 0, 1, 5
_VARINT_BYTES = 10
_WINDOW = 4096


class WireField(NamedTuple):
    """Where one field of a message is."""

    number: int
    wire_type: int
    begin: int
    """Offset of its tag."""
    value: int
    """Offset of its value, after the length if it has one."""
    end: int


class FieldWalk:
    """Walks over the fields of messages in a file, and refuses to walk over too many.

    A field of two bytes can become an object of hundreds of bytes, so the fields of a message are counted
    before it is parsed.
    """

    def __init__(self, read: ReadAt, *, limit: int) -> None:
        self._read = read
        self._limit = limit
        self._left = limit

    def fields(
        self, begin: int, end: int, *, short: type[UnreadableTensor] = UnreadableTensor
    ) -> Iterator[WireField]:
        """Yield the fields of the message at bytes `begin` to `end`. Long values are not read.

        Args:
            begin: offset of the first byte of the message.
            end: offset of the first byte after it.
            short: what to raise if a field extends beyond the end.

        Raises:
            UnreadableTensor: this is not a message, or one of too many fields.
            Truncated: the file has become shorter.
        """
        window, origin = b"", begin
        position = begin
        while position < end:
            if self._left == 0:
                raise UnreadableTensor(f"its protobuf header has more than {self._limit} fields")
            self._left -= 1
            at = position - origin
            if at + 2 * _VARINT_BYTES > len(window) and origin + len(window) < end:
                origin, window, at = position, self._read(position, min(_WINDOW, end - position)), 0
                if not window:
                    raise Truncated(f"ends at byte {position}, inside its protobuf header")
            key, at = _varint(window, at, short)
            number, wire_type = key >> 3, key & 7
            value, after = _extent(window, at, wire_type, short)
            if number == 0 or after == 0:
                raise UnreadableTensor(f"has no valid protobuf field at byte {position} of its header")
            if origin + after > end:
                raise short(
                    f"field {number} of its protobuf header extends to byte {origin + after}, "
                    f"beyond the end at {end}"
                )
            yield WireField(number, wire_type, position, origin + value, origin + after)
            position = origin + after


def read_varint(read: ReadAt, field: WireField) -> int:
    """Return the number of a field that holds one.

    Raises:
        UnreadableTensor: it holds something else.
    """
    if field.wire_type != _VARINT:
        raise UnreadableTensor(f"field {field.number} of its protobuf header is not a number")
    return _varint(read(field.value, field.end - field.value), 0, UnreadableTensor)[0]


def varint(value: int) -> bytes:
    """Return a number as a varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _extent(window: bytes, at: int, wire_type: int, short: type[UnreadableTensor]) -> tuple[int, int]:
    """Return the index of the value after a tag, and that after the value; 0 and 0 for unknown types."""
    if wire_type == LENGTH_DELIMITED:
        length, value = _varint(window, at, short)
        return value, value + length
    if wire_type == _VARINT:
        return at, _varint(window, at, short)[1]
    if wire_type == _FIXED_64:
        return at, at + 8
    if wire_type == _FIXED_32:
        return at, at + 4
    return 0, 0


def _varint(window: bytes, at: int, short: type[UnreadableTensor]) -> tuple[int, int]:
    value = shift = 0
    for index in range(at, min(at + _VARINT_BYTES, len(window))):
        byte = window[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    if at + _VARINT_BYTES <= len(window):
        raise UnreadableTensor(f"has a number of more than {_VARINT_BYTES} bytes in its protobuf header")
    raise short("its protobuf header ends inside a number")


#: The most fields of a message, and the longest name in bytes.
_MAX_FIELDS, _MAX_NAME = 1000, 4096
_DIMS, _TYPE, _FLOATS, _NAME, _RAW, _DOUBLES, _LOCATION = 1, 2, 4, 8, 9, 10, 14
_TEXT = 8
#: `TensorProto.DataType`.
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
}
#: Fields that hold the elements of a type as they are in memory: floats have a fixed size.
_ELEMENTS = {_RAW: None, _FLOATS: ("float32", "complex64"), _DOUBLES: ("float64", "complex128")}


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the only tensor of a file; see `assemble`. Reads no elements.

    Raises:
        Truncated: the file ends within a field, or before the elements.
        HoldsNoTensor: it holds texts.
        UnreadableTensor: it is damaged, or its elements are not where ONNX Runtime writes them.
    """
    dims, code, name, elements = _read_fields(read, file_size)
    if code == _TEXT:
        facts = {"name": name, "shape": dims[:MAX_NDIM]}
        raise HoldsNoTensor("holds texts", record=json.dumps({"file": facts}))
    element = _element(code)
    refuse_impossible(dims, 16)
    placed = _placed(element, tuple(dims), elements, name, file_size)
    return assemble([placed], {}, read, file_size)


def _read_fields(read: ReadAt, file_size: int) -> tuple[list[int], int, str, WireField | None]:
    """Return the lengths of the axes, the code of the type, the name, and the field with the elements."""
    dims: list[int] = []
    code, name, location = 0, "", 0
    elements: WireField | None = None
    for field in FieldWalk(read, limit=_MAX_FIELDS).fields(0, file_size, short=Truncated):
        if field.number == _DIMS:
            dims += _integers(read, field)
        elif field.number == _TYPE:
            code = read_varint(read, field)
        elif field.number == _LOCATION:
            location = read_varint(read, field)
        elif field.number == _NAME and field.wire_type == LENGTH_DELIMITED:
            name = _text(read, field)
        elif field.number in _ELEMENTS and field.wire_type == LENGTH_DELIMITED and field.end > field.value:
            if elements is not None:
                raise UnreadableTensor("has elements in two places")
            elements = field
    if location:
        raise UnreadableTensor("has its elements in another file")
    return dims, code, name, elements


def _placed(
    element: ElementType, shape: tuple[int, ...], elements: WireField | None, name: str, file_size: int
) -> PlacedTensor:
    nbytes = element.nbytes(math.prod(shape))
    if elements is None and nbytes:
        raise Truncated(f"has {file_size} bytes, and no elements of its tensor of shape {shape}")
    if elements is not None:
        kinds = _ELEMENTS[elements.number]
        if kinds is not None and element.name not in kinds:
            raise UnreadableTensor(f"has elements of type {element.name} in a field of another type")
        if elements.end - elements.value != nbytes:
            found = elements.end - elements.value
            raise UnreadableTensor(
                f"has {found} bytes of elements instead of {nbytes} ({element.name}, {shape})"
            )
    offset = elements.value if elements is not None else file_size
    return PlacedTensor(element, shape, offset, nbytes, full_name=name)


def _element(code: int) -> ElementType:
    if code not in _DTYPES:
        raise UnreadableTensor(f"has the element type {code}, which is not known")
    return from_name(_DTYPES[code])


def _integers(read: ReadAt, field: WireField) -> list[int]:
    if field.wire_type != LENGTH_DELIMITED:
        return [read_varint(read, field)]
    if field.end - field.value > 10 * MAX_NDIM:
        raise UnreadableTensor(f"has more than {MAX_NDIM} axes")
    packed, at = read_exactly(read, field.value, field.end - field.value), 0
    numbers: list[int] = []
    while at < len(packed):
        number, at = _varint(packed, at, UnreadableTensor)
        numbers.append(number)
    return numbers


def _text(read: ReadAt, field: WireField) -> str:
    nbytes = field.end - field.value
    if nbytes > _MAX_NAME:
        raise UnreadableTensor(f"has a name of {nbytes} bytes")
    return read_exactly(read, field.value, nbytes).decode(errors="replace")
