"""Files of `torch.save` that are alike: what was found in one is known of the next.

The files of a dump are written by the same program. Most of them differ in their elements, their checksums
and the name of the file, which is the first part of the names of members, and in nothing else. A file is
alike if all of this is equal, bit for bit: its size, the directory of its archive without times, checksums
and that name, the headers of the members that hold tensors, their pickle and their byte order. Then its
tensors lie where those of the first one do. Comparing takes a quarter of the time of reading.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
#: Where the header of a member has its magic, and the lengths of what follows.
_MAGIC, _LENGTHS = slice(4), slice(26, LOCAL_NBYTES)
_NAME_LENGTHS = struct.Struct("<3H")


class _Known(NamedTuple):
    """The headers of a file, and where the bytes around its payloads are."""

    headers: tuple[TensorHeader, ...]
    rest: tuple[tuple[Any, ...], ...]
    """Of each header, all fields behind `tail`."""


@dataclass(slots=True)
class _Structure:
    """What files that are alike have in common."""

    mask: int
    """Has the bits of the end of a file, from the directory on, that must be equal."""
    end: int
    """These bits."""
    stems: tuple[slice, ...]
    """Where the name of the file stands in that end, once for each member."""
    members: tuple[tuple[int, bytes, bytes], ...]
    """For each member that is read: where its header is, its magic, and the lengths in it."""
    pickle: tuple[int, int]
    """Where the pickle begins, and its length."""
    order: tuple[int, bytes]
    """Where the byte order stands, and how it reads; nothing for none."""
    known: dict[bytes, _Known] = field(default_factory=dict)
    """By pickle."""

    @property
    def common(self) -> tuple[object, ...]:
        """All but what is known of single pickles."""
        return self.mask, self.end, self.stems, self.members, self.pickle, self.order


class AlikeFiles:
    """The structures of the files that were read last, and what is in them."""

    def __init__(self) -> None:
        self._structures: dict[tuple[int, bytes], _Structure] = {}

    def headers_of(self, read: ReadAt, file_size: int) -> tuple[TensorHeader, ...] | None:
        """Return the parts of a file that is like one that was remembered; None for any other."""
        end_record = read(file_size - END_NBYTES, END_NBYTES) if file_size > END_NBYTES else b""
        structure = self._structures.get((file_size, end_record))
        if structure is None or read(0, len(LOCAL_MAGIC)) != LOCAL_MAGIC:
            return None
        begin = end_places(end_record)[0]
        end = read(begin, file_size - begin)
        if int.from_bytes(end, "little") & structure.mask != structure.end:
            return None
        stem = end[structure.stems[0]]
        for place in structure.stems:
            if end[place] != stem:
                return None
        for offset, magic, lengths in structure.members:
            header = read(offset, LOCAL_NBYTES)
            if header[_LENGTHS] != lengths or header[_MAGIC] != magic:
                return None
        offset, order = structure.order
        known = structure.known.get(read(*structure.pickle))
        if known is None or read(offset, len(order)) != order:
            return None
        return tuple(map(_moved, known.headers, known.rest, [read] * len(known.headers)))

    def remember(
        self,
        read: ReadAt,
        file_size: int,
        archive: Archive,
        used: Sequence[Member],
        headers: tuple[TensorHeader, ...],
    ) -> None:
        """Remember a file.

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
        end_record = read(file_size - END_NBYTES, END_NBYTES)
        if end_places(end_record)[0] != archive.directory_offset:
            return  # a zip64, or one with a comment
        made = _structure(read, file_size, archive, used)
        if made is None:
            return
        key = (file_size, end_record)
        structure = self._structures.get(key)
        if structure is None or structure.common != made.common or len(structure.known) >= _MAX_PICKLES:
            if len(self._structures) >= _MAX_KNOWN:
                self._structures.clear()
            structure = self._structures[key] = made
        rest = tuple(tuple(getattr(h, name) for name in TensorHeader.__match_args__[6:]) for h in headers)
        structure.known[read(*structure.pickle)] = _Known(headers, rest)


def _moved(header: TensorHeader, rest: tuple[Any, ...], read: ReadAt) -> TensorHeader:
    """Return a header with the bytes around it that this file has."""
    if header.view is not None:
        return header
    offset, end, lead_n = header.offset, header.offset + header.nbytes, len(header.lead)
    tail = read(end, len(header.tail)) if header.tail else b""
    lead = read(offset - lead_n, lead_n)
    return TensorHeader(header.element, header.shape, offset, header.nbytes, lead, tail, *rest)


def _structure(read: ReadAt, file_size: int, archive: Archive, used: Sequence[Member]) -> _Structure | None:
    """Return the structure of a file; None if the names of its members do not begin with the same one."""
    begin = archive.directory_offset
    end = read(begin, file_size - begin)
    mask = bytearray(b"\xff" * len(end))
    stems: list[slice] = []
    stem = b""
    for at, name in _entries(end, len(archive.members)):
        stem = stem or name[: name.find(b"/") + 1]
        if not stem or not name.startswith(stem):
            return None
        mask[at + _VARYING.start : at + _VARYING.stop] = bytes(_VARYING.stop - _VARYING.start)
        place = slice(at + ENTRY_NBYTES, at + ENTRY_NBYTES + len(stem) - 1)
        mask[place] = bytes(len(stem) - 1)
        stems.append(place)
    bits = int.from_bytes(mask, "little")
    members = []
    for member in used:
        header = read(member.header_offset, LOCAL_NBYTES)
        members.append((member.header_offset, header[_MAGIC], header[_LENGTHS]))
    order = (0, b"")
    if len(used) > 1 and used[1].name.endswith("/byteorder"):
        offset, nbytes = archive.place(read, used[1])
        order = (offset, read(offset, nbytes))
    return _Structure(
        mask=bits,
        end=int.from_bytes(end, "little") & bits,
        stems=tuple(stems),
        members=tuple(members),
        pickle=archive.place(read, used[0]),
        order=order,
    )


def _entries(directory: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield where the entry of each member begins, and its name."""
    at = 0
    for _ in range(count):
        name_n, extra_n, comment_n = _NAME_LENGTHS.unpack_from(directory, at + 28)
        name = at + ENTRY_NBYTES
        yield at, directory[name : name + name_n]
        at = name + name_n + extra_n + comment_n
