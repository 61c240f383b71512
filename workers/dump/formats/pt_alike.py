"""Files of `torch.save` that are alike: what was found in one is known of the next.

The files of a dump are written by the same program. Most of them differ in their elements, their checksums,
the name of the file, which is the first part of the names of members, and in values that a dumper writes
beside the tensor: a counter, the name of the tensor. A file is alike if all else is equal, bit for bit: its
size, the directory of its archive without times, checksums and that name, the headers of the members that
hold tensors, their pickle without such values, and their byte order. Then its tensors lie at the same places
as in the first file. All these bytes are in the envelopes of the payloads, and are cut into what must be
equal, names and values by one call.

A value that is a member of a dictionary, and of nothing else, becomes an attribute of the file, and has no
effect on what else the pickle describes. Which members these are is found by running the pickle once more,
with a note of the place of each value. Which of them do differ is learnt: the others are compared with all
the rest of the pickle, which is quicker than reading them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias

from workers.dump.formats.header import FileParts, ReadAt, TensorHeader
from workers.dump.formats.pickle_machine import Machine
from workers.dump.formats.zip_archive import (
    END_NBYTES,
    ENTRY_NBYTES,
    LOCAL_MAGIC,
    LOCAL_NBYTES,
    Archive,
    Member,
)
from workers.errors import UnreadableTensor

#: The longest pickle that is remembered: its texts are shorter than any limit of attributes.
MAX_PICKLE_NBYTES = 4096
#: The longest directory that is remembered, and the most tensors of a file.
_MAX_DIRECTORY_NBYTES, _MAX_TENSORS = 8192, 1000
#: The longest attributes that are remembered, as JSON. With texts of the longest pickle in them, each byte of
#: which takes up to six characters, they stay below `pt_tree.MAX_ATTRIBUTES_NBYTES`.
_MAX_TEXT_NBYTES = 16 * 1024
#: How many files are remembered, how many of one size with the same end, and how many values of each may
#: differ.
_MAX_KNOWN, _MAX_ALIKE, _MAX_VARYING = 1024, 16, 64
_NAME_LENGTHS = struct.Struct("<3H")
_EQUAL, _STEM = -1, -2
_encode = json.JSONEncoder().encode

_Value: TypeAlias = Any
_Path: TypeAlias = tuple[str, ...]
_Key: TypeAlias = tuple[int, bytes]
"""Size and end of a file."""
_Part: TypeAlias = tuple[int, int, int]
"""Where some bytes of a file begin and end, and what they are: `_EQUAL`, `_STEM` for the name of the file, or
the instruction of a pickle for its value."""


class ReadArchive(NamedTuple):
    """A file of `torch.save` that was read, to be remembered for those that are like it."""

    read: ReadAt
    file_size: int
    archive: Archive
    used: Sequence[Member]
    """The member with the pickle, the one with the byte order if there is one, and those with the storages of
    tensors."""
    attributes: Mapping[str, Any]
    """Those of the file: values for JSON."""
    headers: tuple[TensorHeader, ...]


class _Known(NamedTuple):
    """A file, and what another one of the same size and end must have in common with it to be alike."""

    envelopes: tuple[tuple[int, int], ...]
    """Offset and length of the bytes before each payload, then of those behind the last one."""
    cut: struct.Struct
    """Cuts these bytes, joined, into all that is compared or read."""
    equal: Callable[[Sequence[bytes]], tuple[bytes, ...]]
    """Selects of that what must be equal."""
    expected: tuple[bytes, ...]
    stems: Callable[[Sequence[bytes]], tuple[bytes, ...]]
    """Selects the name of the file, once for each member."""
    values: tuple[tuple[int, int], ...]
    record: str
    """The record of the file, with `%s` for each of them."""
    headers: tuple[TensorHeader, ...]
    """Those of payloads without `lead` and `tail`, and then those of tensors without a payload; the first one
    has no record."""

    def parts_of(self, read: ReadAt) -> FileParts | None:
        envelopes = [read(offset, nbytes) for offset, nbytes in self.envelopes]
        joined = b"".join(envelopes)
        if len(joined) != self.cut.size:
            return None
        parts = self.cut.unpack(joined)
        stems = self.stems(parts)
        # If there is a slash in the name, the pickle is not where torch puts it.
        if self.equal(parts) != self.expected or stems.count(stems[0]) < len(stems) or b"/" in stems[0]:
            return None
        values = tuple([_as_json(instruction, parts[place]) for place, instruction in self.values])
        if None in values:
            return None
        if len(self.headers) == 1:
            return FileParts(self.headers, joined, self.record % values)
        payloads = len(envelopes) - 1
        tails = [b""] * (payloads - 1) + [envelopes[-1]]
        first, *others = [
            header._replace(lead=lead, tail=tail)
            for header, lead, tail in zip(self.headers, envelopes, tails, strict=False)
        ]
        complete = (first._replace(record=self.record % values), *others, *self.headers[payloads:])
        return FileParts(complete)


class AlikeFiles:
    """The structures of the files that were read last, and what is in them."""

    def __init__(self) -> None:
        self._known: dict[_Key, list[_Known]] = {}
        self._missed: dict[_Key, tuple[int, bytes]] = {}
        """How many files were like none that is known, and the pickle of the last of them."""
        self._varying: set[_Path] = set()
        """The ways to the values that differ between pickles."""

    def find(self, read: ReadAt, file_size: int) -> FileParts | None:
        """Return the parts of a file that is like one that was remembered; None for any other."""
        for known in self._known.get(_key(read, file_size), ()):
            if parts := known.parts_of(read):
                return parts
        return None

    def remember(self, file: ReadArchive) -> None:
        """Remember a file that was not found, if one of its size and end was not found before.

        Many a file is like no other, and it takes a third of the time of reading a file to remember it.
        """
        archive, pickled = file.archive, file.used[0]
        if not _is_small(file):
            return
        key = _key(file.read, file.file_size)
        offset, nbytes = archive.place(file.read, pickled)
        code = file.read(offset, nbytes)
        count, before = self._missed.get(key, (0, b""))
        for memory in (self._missed, self._known):
            if len(memory) >= _MAX_KNOWN:
                memory.clear()
        self._missed[key] = count + 1, code
        # After many files that were alike to none, only the 32nd, 64th, 128th... is remembered.
        is_due = count and (count < _MAX_ALIKE or (count + 1).bit_count() == 1)
        if is_due and (known := _known(file, offset, self._learn(code, before))):
            alike = self._known.setdefault(key, [])
            alike.insert(0, known)
            del alike[_MAX_ALIKE:]

    def _learn(self, code: bytes, before: bytes) -> dict[_Path, _Part]:
        places, last = _places(code), _places(before)
        self._varying |= {
            path
            for path, (begin, end, _) in places.items()
            if path in last and code[begin:end] != before[last[path][0] : last[path][1]]
        }
        varying = [path for path in places if path in self._varying][:_MAX_VARYING]
        return {path: places[path] for path in varying}


def _key(read: ReadAt, file_size: int) -> _Key:
    return file_size, read(file_size - END_NBYTES, END_NBYTES) if file_size > END_NBYTES else b""


def _is_small(file: ReadArchive) -> bool:
    """Return whether it is small enough to be remembered, and holds nothing but whole tensors."""
    return (
        file.file_size - file.archive.directory_offset <= _MAX_DIRECTORY_NBYTES
        and file.used[0].nbytes <= MAX_PICKLE_NBYTES
        and len(file.headers) <= _MAX_TENSORS
        and not any(header.is_part for header in file.headers)
    )


def _known(file: ReadArchive, pickle: int, varying: Mapping[_Path, _Part]) -> _Known | None:
    """Return what there is to know of a file; None if another one could not be compared with it.

    Args:
        file: the file.
        pickle: where its pickle begins.
        varying: where values that differ stand in it.
    """
    read = file.read
    values = [(pickle + begin, pickle + end, instruction) for begin, end, instruction in varying.values()]
    directory = list(_directory_parts(file))
    parts = sorted({*directory, *_member_parts(file, pickle, values)})
    envelopes = _envelopes(file.headers)
    cut = _cut(parts, envelopes)
    record = _record(file, list(varying))
    # `itemgetter` would return a single name without a tuple; a file of torch.save has more than one.
    stems = [place for place, part in enumerate(parts) if part[2] == _STEM]
    if cut is None or record is None or len(stems) < 2:
        return None
    equal = [place for place, part in enumerate(parts) if part[2] == _EQUAL]
    first, *others = [header._replace(lead=b"", tail=b"") for header in file.headers]
    return _Known(
        envelopes=envelopes,
        cut=cut,
        equal=itemgetter(*equal),
        expected=tuple(read(parts[place][0], parts[place][1] - parts[place][0]) for place in equal),
        stems=itemgetter(*stems),
        values=tuple((place, part[2]) for place, part in enumerate(parts) if part[2] >= 0),
        record=record,
        headers=(first._replace(record=""), *others),
    )


def _directory_parts(file: ReadArchive) -> Iterator[_Part]:
    """Yield the parts of a directory but times and checksums.

    Nothing is yielded from the first name on that does not begin with that of the file.
    """
    begin = file.archive.directory_offset
    directory = file.read(begin, file.file_size - begin)
    stem = b""
    at = 0
    for _ in file.archive.members:
        name_n, extra_n, comment_n = _NAME_LENGTHS.unpack_from(directory, at + 28)
        first, end = at + ENTRY_NBYTES, at + ENTRY_NBYTES + name_n + extra_n + comment_n
        name = directory[first : first + name_n]
        stem = stem or name[: name.find(b"/") + 1]
        if len(stem) < 2 or not name.startswith(stem):
            return
        last = first + len(stem) - 1
        for part in (
            (at, at + 12, _EQUAL),
            (at + 20, first, _EQUAL),
            (first, last, _STEM),
            (last, end, _EQUAL),
        ):
            yield begin + part[0], begin + part[1], part[2]
        at = end
    # A zip64 has further records, which are the same.
    yield begin + at, file.file_size, _EQUAL


def _member_parts(file: ReadArchive, pickle: int, values: Sequence[_Part]) -> Iterator[_Part]:
    """Yield magic and lengths from the headers of members, the byte order, and pickle and values in it."""
    yield 0, len(LOCAL_MAGIC), _EQUAL
    for member in file.used:
        at = member.header_offset
        yield at, at + len(LOCAL_MAGIC), _EQUAL
        yield at + 26, at + LOCAL_NBYTES, _EQUAL
        if member.name.endswith("/byteorder"):
            offset, nbytes = file.archive.place(file.read, member)
            yield offset, offset + nbytes, _EQUAL
    begin = pickle
    for value in values:
        yield begin, value[0], _EQUAL
        yield value
        begin = value[1]
    yield begin, pickle + file.used[0].nbytes, _EQUAL


def _envelopes(headers: Sequence[TensorHeader]) -> tuple[tuple[int, int], ...]:
    payloads = [header for header in headers if header.view is None]
    last = payloads[-1]
    leads = [(header.offset - len(header.lead), len(header.lead)) for header in payloads]
    return (*leads, (last.offset + last.nbytes, len(last.tail)))


def _cut(parts: Sequence[_Part], envelopes: Sequence[tuple[int, int]]) -> struct.Struct | None:
    """Return what cuts parts of a file, in their order, out of its envelopes; None if one is not there."""
    formats: list[str] = []
    at = 0
    starts = [sum(nbytes for _, nbytes in envelopes[:number]) for number in range(len(envelopes))]
    for first, last, _ in parts:
        place = next(
            (
                start + first - offset
                for start, (offset, nbytes) in zip(starts, envelopes, strict=True)
                if offset <= first and last <= offset + nbytes
            ),
            -1,
        )
        if place < at:
            return None
        formats.append(f"{place - at}x{last - first}s")
        at = place + last - first
    return struct.Struct(f"<{''.join(formats)}{sum(nbytes for _, nbytes in envelopes) - at}x")


def _record(file: ReadArchive, varying: Sequence[_Path]) -> str | None:
    """Return the record of a file with `%s` for the values that differ; None if it does not end with them."""
    record = file.headers[0].record
    if not varying:
        return record.replace("%", "%%")
    texts: list[str] = []
    left = list(reversed(varying))

    def write(value: _Value, path: _Path) -> None:
        if left and path == left[-1]:
            left.pop()
            texts.append("%s")
        elif not isinstance(value, dict):
            texts.append(_encode(value).replace("%", "%%"))
        else:
            texts.append("{")
            for number, (key, member) in enumerate(value.items()):
                texts.append(f"{', ' if number else ''}{_encode(key)}: ".replace("%", "%%"))
                write(member, (*path, key))
            texts.append("}")

    write(file.attributes, ())
    before = record.removesuffix(f"{_encode(file.attributes)}}}").replace("%", "%%")
    is_known = not left and len(before) < len(record) and "left_out" not in file.attributes
    return f"{before}{''.join(texts)}}}" if is_known and sum(map(len, texts)) <= _MAX_TEXT_NBYTES else None


#: The instructions of pickle for values that may differ: BININT1, BININT2, BININT, BINFLOAT, and those for
#: texts, BINUNICODE and SHORT_BINUNICODE, with the bytes of their length.
_INTEGERS, _FLOAT = b"KMJ", ord("G")
_TEXTS = {ord("X"): 4, 0x8C: 1}


def _as_json(instruction: int, content: bytes) -> str | None:
    """Return the value behind an instruction as JSON; None if it has another length."""
    if (length_n := _TEXTS.get(instruction)) is not None:
        text = content[length_n:]
        return (
            _encode(text.decode(errors="replace"))
            if int.from_bytes(content[:length_n], "little") == len(text)
            else None
        )
    if instruction == _FLOAT:
        value = struct.unpack(">d", content)[0]
        return _encode(value if math.isfinite(value) else str(value))
    return str(int.from_bytes(content, "little", signed=instruction == ord("J")))


class _Written(NamedTuple):
    """A number or a text in a pickle, and where it stands."""

    value: _Value
    place: _Part


class _PlacingMachine(Machine):
    """Runs a pickle, and keeps the place of each number and text. Nothing is called."""

    def __init__(self, code: bytes) -> None:
        super().__init__(code, {})
        self.fetched: dict[int, _Value] = {}
        """The values that the pickle refers to again after they were made, by identity."""

    def _write(self) -> _Written:
        begin = self.end
        instruction = self._code[begin - 1]
        value = Machine.VALUES[instruction](self)
        return _Written(value, (begin, self.end, instruction))

    def _get(self, number: int) -> _Value:
        value = super()._get(number)
        self.fetched[id(value)] = value
        return value

    def _set(self, target: _Value, items: list[_Value]) -> _Value:
        items[::2] = map(_value_of, items[::2])
        return super()._set(target, items)

    VALUES: ClassVar[Mapping[int, Callable[[Any], _Value]]] = {
        **Machine.VALUES,
        **dict.fromkeys([*_INTEGERS, _FLOAT, *_TEXTS], _write),
        0x93: lambda self: self._global(*map(_value_of, self._take(2))),
        ord("Q"): lambda self: tuple(self._take(1)),
    }


def _value_of(value: _Value) -> _Value:
    return value.value if isinstance(value, _Written) else value


def _places(code: bytes) -> dict[_Path, _Part]:
    """Return where values stand that are members of dictionaries and nothing else, by the ways to them."""
    machine = _PlacingMachine(code)
    try:
        root = machine.run()
    except UnreadableTensor:  # it needs what a function makes, or has keys that are not simple
        return {}

    def members(value: _Value, path: _Path) -> Iterator[tuple[_Path, _Part]]:
        if id(value) in machine.fetched:
            return
        if isinstance(value, _Written):
            yield path, value.place
        # Keys of other types are written as text, so two of them may be the same.
        elif type(value) is dict and all(type(key) is str for key in value):
            for key, member in value.items():
                yield from members(member, (*path, key))

    return dict(sorted(members(root, ()), key=lambda item: item[1]))
