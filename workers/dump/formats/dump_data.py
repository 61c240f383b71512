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

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from workers.dump.formats.dump_data_pb2 import DumpData, OpBuffer, OpInput, OpOutput, Workspace
from workers.dump.formats.dump_data_tensor import Described, Item, format_name, interpret, original_of
from workers.dump.formats.header import ReadAt, TensorHeader, Truncated
from workers.dump.formats.wire import LENGTH_DELIMITED, FieldWalk, WireField, varint
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


class _PlacedItem(NamedTuple):
    """One tensor of a header, and where its bytes are in the file."""

    io: str
    slot: int
    item: Item
    offset: int
    size: int
    """Bytes in the file."""


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
        head += read(len(head), begin - len(head))
        if begin > len(head):
            raise Truncated(f"has {len(head)} bytes, fewer than the {begin} of its DumpData header")
    header = head[_LENGTH_BYTES:begin]
    # Fields are counted first, because parsing would make an object of each.
    for _ in FieldWalk(lambda at, n: header[at : at + n], limit=MAX_FIELDS).fields(0, length):
        pass
    message = _parse(header)
    return _headers(message, _placed_items(message, begin, file_size), read, file_size, head[:begin])


def _parse(header: bytes) -> DumpData:
    try:
        return DumpData.FromString(header)
    except DecodeError as exc:
        raise UnreadableTensor("its protobuf header is damaged") from exc


def _placed_items(message: DumpData, begin: int, file_size: int) -> Iterator[_PlacedItem]:
    """Yield all tensors of a file with payloads after its header, whose size must be exactly right."""
    skip_absent = _skips_absent(message, begin, file_size)
    offset = begin
    for io, slot, item in _items(message):
        size = 0 if skip_absent and _is_absent(item) else item.size
        yield _PlacedItem(io, slot, item, offset, size)
        offset += size


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
    """Yield io, slot and message of all tensors in the order of their payloads."""
    for slot, item in enumerate(message.input):
        yield "input", slot, item
    for slot, output in enumerate(message.output):
        yield "output", slot, output
    for slot, buffer in enumerate(message.buffer):
        yield "buffer", slot, buffer
    for slot, space in enumerate(message.space):
        yield "space", slot, space


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
    parts.sort(key=lambda part: part.offset)
    return _headers(message, parts, read, file_size, b"")


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
        data = read(field.begin, length)
        if len(data) != length:
            raise Truncated(f"ends before byte {field.end}, inside its protobuf header")
        return data

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
    message: DumpData, items: Iterable[_PlacedItem], read: ReadAt, file_size: int, head: bytes
) -> tuple[TensorHeader, ...]:
    """Return the headers of all tensors, given where they are and the beginning of the file."""
    if len(message.op_name) > _MAX_NAME_BYTES:
        raise UnreadableTensor(f"has an operator name of {len(message.op_name)} bytes")
    full_name = message.op_name.decode("utf-8", "replace")

    def between(begin: int, end: int) -> bytes:
        data = head[begin:end] if end <= len(head) else read(begin, end - begin)
        if len(data) != end - begin:
            raise Truncated(f"ends before byte {end}; it had {file_size} bytes")
        return data

    headers: list[TensorHeader] = []
    previous_end = 0  # of the previous payload
    all_items = tuple(items)
    # Each tensor carries the name: many tensors without bytes would take far more memory than the file has.
    if len(message.op_name) * len(all_items) > _MAX_NAME_BYTES + 16 * file_size:
        raise UnreadableTensor(
            f"has an operator name of {len(message.op_name)} bytes for each of {len(all_items)} tensors, "
            f"in a file of {file_size} bytes"
        )
    for placed in all_items:
        meaning = interpret(placed.io, placed.slot, placed.item, placed.size)
        end = placed.offset + meaning.nbytes
        headers.append(
            TensorHeader(
                element=meaning.element,
                shape=meaning.shape,
                offset=placed.offset,
                nbytes=meaning.nbytes,
                lead=between(previous_end, placed.offset) if placed.offset > previous_end else b"",
                tail=between(end, file_size) if placed is all_items[-1] and end < file_size else b"",
                device=meaning.device,
                io=placed.io,
                slot=placed.slot,
                full_name=full_name,
                format=format_name(placed.item),
                declared_dtype=meaning.declared_dtype,
                problem=meaning.problem,
                record=original_of(placed.item),
            )
        )
        previous_end = end
    return tuple(headers)
