"""The wire format of protobuf, as far as needed to walk over fields without parsing them.

Source: "Encoding", protobuf.dev. Groups (wire types 3 and 4), which can be nested without limit, are refused:
the messages that are read here have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workers.dump.formats.header import ReadAt, Truncated
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
    """Return the varint at an index, and the index after it."""
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
