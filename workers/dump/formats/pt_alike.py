"""Files of `torch.save` that are alike: what was found in one is known of the next.

The files of a dump are written by the same program. Most of them differ in their elements, their checksums
and the name of the file, which is the first part of the names of members, and in nothing else. A file is
alike if all of this is equal, bit for bit: its size, the directory of its archive without times, checksums
and that name, the headers of the members that hold tensors, their pickle and their byte order. Then its
tensors lie at the same places as in the first file. All these bytes are around the payloads, and are cut
out in any case, so the comparison takes only a few slices.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from workers.dump.formats.header import ReadAt, TensorHeader
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
#: How many directories are remembered, and how many pickles of each.
_MAX_KNOWN, _MAX_PICKLES = 256, 16
#: Where an entry of a directory has time, date and checksum.
_VARYING = slice(12, 20)
#: Where the header of a member has its magic, and the lengths of the following parts.
_MAGIC, _LENGTHS = slice(0, 4), slice(26, LOCAL_NBYTES)
_NAME_LENGTHS = struct.Struct("<3H")

_Range: TypeAlias = tuple[int, int]
"""Where some bytes begin and end."""
_Cut: TypeAlias = Callable[[bytes], tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class _Known:
    """A file, and what another one of the same size and pickle must have in common with it to be alike."""

    around: tuple[_Range, ...]
    """Offset and length of the bytes before each payload, then of those behind the last one."""
    nbytes: int
    """Their total length."""
    equal: _Cut
    """Cuts out of these bytes, joined, what must be equal."""
    expected: tuple[bytes, ...]
    """How it reads."""
    stems: _Cut
    """Cuts out of them the name of the file, once for each member."""
    headers: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    """Of the header of each payload, the fields before `lead`, and those behind `tail`."""
    views: tuple[TensorHeader, ...]
    """The headers of tensors without their own payload."""

    def headers_of(self, read: ReadAt) -> tuple[TensorHeader, ...] | None:
        """Return the parts of a file; None if it is not alike."""
        around = [read(offset, nbytes) for offset, nbytes in self.around]
        joined = b"".join(around)
        if len(joined) != self.nbytes or self.equal(joined) != self.expected:
            return None
        stems = self.stems(joined)
        # If there is a slash in the name, the pickle is not where torch puts it.
        if stems.count(stems[0]) != len(stems) or b"/" in stems[0]:
            return None
        tails = [b""] * (len(self.headers) - 1) + around[-1:]
        payloads = [
            TensorHeader._make((*before, lead, tail, *behind))
            for (before, behind), lead, tail in zip(self.headers, around, tails, strict=False)
        ]
        return (*payloads, *self.views)


class _Structure(NamedTuple):
    """What is known of files of one size with the same end."""

    pickle: tuple[int, int]
    """Where the pickle begins, and its length."""
    known: dict[bytes, _Known]
    """By pickle."""


class AlikeFiles:
    """The structures of the files that were read last, and what is in them."""

    def __init__(self) -> None:
        self._structures: dict[tuple[int, bytes], _Structure] = {}
        self._once: set[tuple[int, bytes]] = set()
        """Size and pickle of files that were seen once: many a file is like no other."""

    def headers_of(self, read: ReadAt, file_size: int) -> tuple[TensorHeader, ...] | None:
        """Return the parts of a file that is like one that was remembered; None for any other."""
        end_record = read(file_size - END_NBYTES, END_NBYTES) if file_size > END_NBYTES else b""
        structure = self._structures.get((file_size, end_record))
        if structure is None:
            return None
        known = structure.known.get(read(*structure.pickle))
        return None if known is None else known.headers_of(read)

    def remember(
        self,
        read: ReadAt,
        file_size: int,
        archive: Archive,
        used: Sequence[Member],
        headers: tuple[TensorHeader, ...],
    ) -> None:
        """Remember a file, if one of its size with its pickle was seen before.

        Args:
            read: reads parts of the file.
            file_size: bytes of the file.
            archive: the archive that it is.
            used: the member with the pickle, the one with the byte order if there is one, and those with the
                storages of tensors.
            headers: what it consists of.
        """
        pickled = used[0]
        if (
            file_size - archive.directory_offset > _MAX_DIRECTORY_NBYTES
            or pickled.nbytes > _MAX_PICKLE_NBYTES
            or any(header.is_part for header in headers)
        ):
            return
        pickle = archive.place(read, pickled)
        if self._is_first(file_size, read(*pickle)):
            return
        end_record = read(file_size - END_NBYTES, END_NBYTES)
        if end_places(end_record)[0] != archive.directory_offset:
            return  # a zip64, or one with a comment
        known = _known(read, file_size, archive, used, headers)
        if known is None:
            return
        key = file_size, end_record
        structure = self._structures.get(key)
        if structure is None or structure.pickle != pickle or len(structure.known) >= _MAX_PICKLES:
            if len(self._structures) >= _MAX_KNOWN:
                self._structures.clear()
            structure = self._structures[key] = _Structure(pickle, {})
        structure.known[read(*pickle)] = known

    def _is_first(self, file_size: int, pickled: bytes) -> bool:
        """Return whether a file is the first one of its size with its pickle."""
        seen = file_size, pickled
        if seen in self._once:
            return False
        if len(self._once) >= _MAX_KNOWN:
            self._once.clear()
        self._once.add(seen)
        return True


def _known(
    read: ReadAt, file_size: int, archive: Archive, used: Sequence[Member], headers: Sequence[TensorHeader]
) -> _Known | None:
    """Return what there is to know of a file; None if another one could not be compared with it."""
    begin = archive.directory_offset
    directory = read(begin, file_size - begin)
    stems = _stems(directory, len(archive.members))
    # `itemgetter` would return a single member without a tuple; a file of torch.save has more than one.
    if len(stems) < 2:
        return None
    equal = [(0, len(LOCAL_MAGIC)), *_members(read, archive, used)]
    equal += [(begin + first, begin + last) for first, last in _unvarying(directory, stems)]
    payloads = [header for header in headers if header.view is None]
    around = [(header.offset - len(header.lead), len(header.lead)) for header in payloads]
    around.append((payloads[-1].offset + payloads[-1].nbytes, len(payloads[-1].tail)))
    stem_ranges = [(begin + first, begin + last) for _, first, last in stems]
    cut_equal, cut_stems = (_cut(ranges, around) for ranges in (equal, stem_ranges))
    if cut_equal is None or cut_stems is None:
        return None
    return _Known(
        around=tuple(around),
        nbytes=sum(nbytes for _, nbytes in around),
        equal=cut_equal,
        expected=tuple(read(first, last - first) for first, last in equal),
        stems=cut_stems,
        headers=tuple((header[:_LEAD], header[_LEAD + 2 :]) for header in payloads),
        views=tuple(header for header in headers if header.view is not None),
    )


#: Where a header has its lead; its tail is next.
_LEAD = TensorHeader._fields.index("lead")


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

    Nothing is returned if the names of the members do not begin with the same one.
    """
    stems = []
    stem = b""
    at = 0
    for _ in range(count):
        name_n, extra_n, comment_n = _NAME_LENGTHS.unpack_from(directory, at + 28)
        first = at + ENTRY_NBYTES
        name = directory[first : first + name_n]
        stem = stem or name[: name.find(b"/") + 1]
        if not stem or not name.startswith(stem):
            return []
        stems.append((at, first, first + len(stem) - 1))
        at = first + name_n + extra_n + comment_n
    return stems


def _unvarying(directory: bytes, stems: Sequence[tuple[int, int, int]]) -> Iterator[_Range]:
    """Yield the parts of a directory between what varies: times, checksums and the name of the file."""
    begin = 0
    for entry, first, last in stems:
        yield begin, entry + _VARYING.start
        yield entry + _VARYING.stop, first
        begin = last
    yield begin, len(directory)


def _cut(ranges: Sequence[_Range], around: Sequence[_Range]) -> _Cut | None:
    """Return what cuts ranges of a file out of the bytes around its payloads; None if one is not there."""
    slices = []
    for first, last in ranges:
        at = 0
        for offset, nbytes in around:
            if offset <= first and last <= offset + nbytes:
                slices.append(slice(at + first - offset, at + last - offset))
                break
            at += nbytes
        else:
            return None
    return itemgetter(*slices)
