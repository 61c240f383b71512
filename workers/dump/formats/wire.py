"""The wire format of protobuf, as far as it takes to walk over fields without parsing them.

Source: "Encoding", protobuf.dev. Groups (wire types 3 and 4), which could be nested without end, are refused:
no message read here has any.
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


class Field(NamedTuple):
    """Where one field of a message stands."""

    number: int
    wire_type: int
    begin: int
    """Offset of its tag."""
    value: int
    """Offset of its value, behind the length if it has one."""
    end: int


class FieldWalk:
    """Walks over the fields of messages in a file, and refuses to walk over too many.

    A field of two bytes can become an object of hundreds: so the fields of a message are counted before it is
    parsed.
    """

    def __init__(self, read: ReadAt, *, limit: int) -> None:
        self._read = read
        self._limit = limit
        self._left = limit

    def fields(
        self, begin: int, end: int, *, short: type[UnreadableTensor] = UnreadableTensor
    ) -> Iterator[Field]:
        """Yield the fields of the message at bytes `begin` to `end`. Long values are not read.

        Args:
            begin: offset of the first byte of the message.
            end: offset of the first byte behind it.
            short: what to raise where a field goes beyond the end.

        Raises:
            UnreadableTensor: this is no message, or one of too many fields.
            Truncated: the file has fewer bytes than it had.
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
                    raise Truncated(f"the file ends at byte {position}, inside its protobuf header")
            key, at = _varint(window, at, short)
            number, wire_type = key >> 3, key & 7
            value, after = _extent(window, at, wire_type, short)
            if number == 0 or after == 0:
                raise UnreadableTensor(f"no field that protobuf has at byte {position} of its header")
            if origin + after > end:
                raise short(
                    f"field {number} of its protobuf header goes to byte {origin + after}, "
                    f"beyond the end at {end}"
                )
            yield Field(number, wire_type, position, origin + value, origin + after)
            position = origin + after


def varint(value: int) -> bytes:
    """Return a number as a varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _extent(window: bytes, at: int, wire_type: int, short: type[UnreadableTensor]) -> tuple[int, int]:
    """Return the indexes of the value behind a tag, and of what follows; 0 and 0 for an unknown wire type."""
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
    """Return the varint at an index, and the index behind it."""
    value = shift = 0
    for index in range(at, min(at + _VARINT_BYTES, len(window))):
        byte = window[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    if at + _VARINT_BYTES <= len(window):
        raise UnreadableTensor(f"a number of more than {_VARINT_BYTES} bytes in its protobuf header")
    raise short("its protobuf header ends inside a number")
