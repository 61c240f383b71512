"""Files of `torch.save` that are alike: what was found in one is known of the next.

The files of a dump are written by the same program. Most of them differ in their elements, their checksums,
the name of the file, which is the first part of the names of members, and in nothing else but values that
stand beside the tensors. A file is alike if all of this is equal, bit for bit: its size, the directory of its
archive without times, checksums and that name, the headers of the members that hold tensors, their pickle
without such values (see `workers.dump.formats.pt_alike_pickles`), and their byte order. Then its tensors lie
at the same places as in the first file. All these bytes are in the envelopes of the payloads, and are cut
into what must be equal, names and values by one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

from workers.dump.formats.header import FileParts, ReadAt, TensorHeader
from workers.dump.formats.pt_alike_archives import ReadArchive
from workers.dump.formats.pt_alike_pickles import CutPickle, ReadValue, literal
from workers.dump.formats.zip_archive import (
    END_NBYTES,
    ENTRY_NBYTES,
    LOCAL_MAGIC,
    LOCAL_NBYTES,
    Archive,
    Member,
    end_places,
)

#: The longest directory that is remembered, and the longest pickle.
_MAX_DIRECTORY_NBYTES, _MAX_PICKLE_NBYTES = 8192, 4096
#: How many files are remembered, and how many of one size with the same end.
_MAX_KNOWN, _MAX_ALIKE = 1024, 16
#: After this many files of one size with the same end, and again after twice as many, one whose values differ
#: is remembered. It takes as long as reading ten that are known by their archive.
_FIRST_DUE = 8
#: Where an entry of a directory has time, date and checksum.
_VARYING = slice(12, 20)
#: Where the header of a member has its magic, and the lengths of the following parts.
_MAGIC, _LENGTHS = slice(0, 4), slice(26, LOCAL_NBYTES)
_NAME_LENGTHS = struct.Struct("<3H")

_Range: TypeAlias = tuple[int, int]
"""Where some bytes begin and end."""
_Key: TypeAlias = tuple[int, bytes]
"""Size and end of a file."""
_Cut: TypeAlias = Callable[[Sequence[bytes]], tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class _Known:
    """A file, and what another one of the same size and end must have in common with it to be alike."""

    envelopes: tuple[_Range, ...]
    """Offset and length of the bytes before each payload, then of those behind the last one."""
    cut: struct.Struct
    """Cuts these bytes, joined, into all that is compared or read."""
    equal: _Cut
    """Selects of that what must be equal."""
    expected: tuple[bytes, ...]
    """How it reads."""
    stems: _Cut
    """Selects the name of the file, once for each member."""
    values: tuple[tuple[int, ReadValue], ...]
    """Which of the parts are values, and what reads each."""
    record: str
    """The record of the file, with `%s` for each of them."""
    headers: tuple[TensorHeader, ...]
    """Those of payloads without `lead` and `tail`, and then those of tensors without a payload; the first one
    has no record."""

    def parts_of(self, read: ReadAt) -> FileParts | None:
        """Return the parts of a file; None if it is not alike."""
        envelopes = [read(offset, nbytes) for offset, nbytes in self.envelopes]
        joined = b"".join(envelopes)
        if len(joined) != self.cut.size:
            return None
        parts = self.cut.unpack(joined)
        stems = self.stems(parts)
        # If there is a slash in the name, the pickle is not where torch puts it.
        if self.equal(parts) != self.expected or stems.count(stems[0]) < len(stems) or b"/" in stems[0]:
            return None
        record = self._record_of(parts)
        if record is None:
            return None
        if len(self.headers) == 1:
            return FileParts(self.headers, joined, record)
        return FileParts(self._complete(envelopes, record))

    def _record_of(self, parts: Sequence[bytes]) -> str | None:
        """Return the record of a file; None if a value has another length than it had."""
        values = []
        for place, read_value in self.values:
            text, end = read_value(parts[place], 0)
            if end != len(parts[place]):
                return None
            values.append(text)
        return self.record % tuple(values)

    def _complete(self, envelopes: Sequence[bytes], record: str) -> tuple[TensorHeader, ...]:
        """Return the headers with their envelopes, and with the record of the file."""
        payloads = len(envelopes) - 1
        tails = [b""] * (payloads - 1) + [envelopes[-1]]
        first, *others = [
            header._replace(lead=lead, tail=tail)
            for header, lead, tail in zip(self.headers, envelopes, tails, strict=False)
        ]
        return (first._replace(record=record), *others, *self.headers[payloads:])


class AlikeFiles:
    """The structures of the files that were read last, and what is in them."""

    def __init__(self) -> None:
        self._known: dict[_Key, list[_Known]] = {}
        self._count = 0
        self._missed: dict[_Key, int] = {}
        """How many files were like none that is known."""
        self._once: set[tuple[int, bytes]] = set()
        """Size and pickle of files that were seen once: many a file is like no other."""

    def find(self, read: ReadAt, file_size: int) -> FileParts | None:
        """Return the parts of a file that is like one that was remembered; None for any other."""
        key = _key(read, file_size)
        for known in self._known.get(key, ()):
            parts = known.parts_of(read)
            if parts is not None:
                return parts
        if len(self._missed) >= _MAX_KNOWN:
            self._missed.clear()
        self._missed[key] = self._missed.get(key, 0) + 1
        return None

    def is_due(self, read: ReadAt, file_size: int) -> bool:
        """Return whether a file that was not found is to be remembered, because there are many like it."""
        missed = self._missed.get(_key(read, file_size), 0)
        return missed >= _FIRST_DUE and missed.bit_count() == 1

    def remember(self, file: ReadArchive, cut_pickle: CutPickle[Any] | None = None) -> None:
        """Remember a file if it is due, or if one of its size with its pickle was seen before.

        Args:
            file: the file.
            cut_pickle: its pickle, if values in it differ from those of others.
        """
        read, file_size, archive, (pickled, *_), headers = file
        if (
            file_size - archive.directory_offset > _MAX_DIRECTORY_NBYTES
            or pickled.nbytes > _MAX_PICKLE_NBYTES
            or any(header.is_part for header in headers)
        ):
            return
        pickle = archive.place(read, pickled)
        if self._is_first(file_size, read(*pickle)) and not self.is_due(read, file_size):
            return
        if end_places(read(file_size - END_NBYTES, END_NBYTES))[0] != archive.directory_offset:
            return  # a zip64, or one with a comment
        known = _known(file, cut_pickle)
        if known is not None:
            self._add(_key(read, file_size), known)

    def _add(self, key: _Key, known: _Known) -> None:
        if self._count >= _MAX_KNOWN:
            self._known.clear()
            self._count = 0
        alike = self._known.setdefault(key, [])
        alike.insert(0, known)
        self._count += 1
        if len(alike) > _MAX_ALIKE:
            alike.pop()
            self._count -= 1

    def _is_first(self, file_size: int, pickled: bytes) -> bool:
        """Return whether a file is the first one of its size with its pickle."""
        seen = file_size, pickled
        if seen in self._once:
            return False
        if len(self._once) >= _MAX_KNOWN:
            self._once.clear()
        self._once.add(seen)
        return True


def _key(read: ReadAt, file_size: int) -> _Key:
    return file_size, read(file_size - END_NBYTES, END_NBYTES) if file_size > END_NBYTES else b""


def _known(file: ReadArchive, cut_pickle: CutPickle[Any] | None) -> _Known | None:
    """Return what there is to know of a file; None if another one could not be compared with it."""
    read, file_size, archive, used, headers = file
    begin = archive.directory_offset
    directory = read(begin, file_size - begin)
    stems = _stems(directory, len(archive.members))
    # `itemgetter` would return a single member without a tuple; a file of torch.save has more than one.
    if len(stems) < 2:
        return None
    offset, nbytes = archive.place(read, used[0])
    varying = cut_pickle.values if cut_pickle else ()
    values = [(offset + value.begin, offset + value.end) for value in varying]
    names = [(begin + first, begin + last) for _, first, last in stems]
    equal = {
        (0, len(LOCAL_MAGIC)),
        *_members(read, archive, used),
        *_between(offset, offset + nbytes, values),
    }
    equal |= {(begin + first, begin + last) for first, last in _unvarying(directory, stems)}
    ranges = sorted(part for part in {*equal, *names, *values} if part[0] < part[1])
    envelopes = _envelopes(headers)
    cut = _cut(ranges, envelopes)
    record = _record_template(headers[0].record, cut_pickle)
    if cut is None or record is None:
        return None
    places = {part: place for place, part in enumerate(ranges)}
    compared = [part for part in ranges if part in equal]
    return _Known(
        envelopes=envelopes,
        cut=cut,
        equal=itemgetter(*(places[part] for part in compared)),
        expected=tuple(read(first, last - first) for first, last in compared),
        stems=itemgetter(*(places[part] for part in names)),
        values=tuple((places[part], value.read) for part, value in zip(values, varying, strict=True)),
        record=record,
        headers=_without_envelopes(headers),
    )


def _envelopes(headers: Sequence[TensorHeader]) -> tuple[_Range, ...]:
    """Return offset and length of the bytes before each payload, then of those behind the last one."""
    payloads = [header for header in headers if header.view is None]
    last = payloads[-1]
    leads = [(header.offset - len(header.lead), len(header.lead)) for header in payloads]
    return (*leads, (last.offset + last.nbytes, len(last.tail)))


def _without_envelopes(headers: Sequence[TensorHeader]) -> tuple[TensorHeader, ...]:
    """Return headers without their envelopes, and without the record of the file."""
    first, *others = [header._replace(lead=b"", tail=b"") for header in headers]
    return first._replace(record=""), *others


def _record_template(record: str, cut_pickle: CutPickle[Any] | None) -> str | None:
    """Return the record of a file with `%s` for the values that differ; None if it does not end with them."""
    if cut_pickle is None:
        return literal(record)
    before = record.removesuffix(f"{cut_pickle.attributes}}}")
    return None if before == record else f"{literal(before)}{cut_pickle.template}}}"


def _between(begin: int, end: int, cuts: Iterable[_Range]) -> Iterator[_Range]:
    """Yield what is left of a range without some parts of it."""
    for first, last in cuts:
        yield begin, first
        begin = last
    yield begin, end


def _members(read: ReadAt, archive: Archive, used: Sequence[Member]) -> Iterator[_Range]:
    """Yield the parts of members' headers that must be equal, and the byte order, if the file states it."""
    for member in used:
        for part in (_MAGIC, _LENGTHS):
            yield member.header_offset + part.start, member.header_offset + part.stop
    if len(used) > 1 and used[1].name.endswith("/byteorder"):
        offset, nbytes = archive.place(read, used[1])
        yield offset, offset + nbytes


def _stems(directory: bytes, count: int) -> list[tuple[int, int, int]]:
    """Return for each entry of a directory where it begins, and where the name of the file is in it.

    Nothing is returned if the names of the members do not begin with the same one, or it is empty.
    """
    stems = []
    stem = b""
    at = 0
    for _ in range(count):
        name_n, extra_n, comment_n = _NAME_LENGTHS.unpack_from(directory, at + 28)
        first = at + ENTRY_NBYTES
        name = directory[first : first + name_n]
        stem = stem or name[: name.find(b"/") + 1]
        if len(stem) < 2 or not name.startswith(stem):
            return []
        stems.append((at, first, first + len(stem) - 1))
        at = first + name_n + extra_n + comment_n
    return stems


def _unvarying(directory: bytes, stems: Sequence[tuple[int, int, int]]) -> Iterator[_Range]:
    """Yield the parts of a directory between what varies: times, checksums and the name of the file."""
    varying = ((entry + _VARYING.start, entry + _VARYING.stop) for entry, _, _ in stems)
    names = ((first, last) for _, first, last in stems)
    return _between(0, len(directory), chain.from_iterable(zip(varying, names, strict=True)))


def _cut(ranges: Sequence[_Range], envelopes: Sequence[_Range]) -> struct.Struct | None:
    """Return what cuts ranges of a file out of its envelopes; None if one is not there.

    Args:
        ranges: in the order of the file; none begins before the end of the one before it.
        envelopes: offset and length of each.
    """
    formats, at = [], 0
    for first, last in ranges:
        place = _place_of(first, last, envelopes)
        if place is None or place < at:
            return None
        formats.append(f"{place - at}x{last - first}s")
        at = place + last - first
    return struct.Struct(f"<{''.join(formats)}{sum(nbytes for _, nbytes in envelopes) - at}x")


def _place_of(first: int, last: int, envelopes: Sequence[_Range]) -> int | None:
    """Return where a range of a file begins in its joined envelopes; None if it is not there."""
    at = 0
    for offset, nbytes in envelopes:
        if offset <= first and last <= offset + nbytes:
            return at + first - offset
        at += nbytes
    return None
