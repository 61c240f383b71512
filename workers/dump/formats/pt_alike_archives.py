"""Archives of `torch.save` with one tensor that are alike: names and values in them differ, also in length.

The names of the members of an archive begin with the name of the file. If that is longer, all that follows
lies elsewhere. So an archive is alike if its directory is the same, member by member, but for times,
checksums, the name of the file, sizes and places. Sizes and places are checked as those of any other archive.
If its pickle is alike, too (`workers.dump.formats.pt_alike_pickles`), its tensor lies in the same place of
the same storage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from workers.dump.formats.assembly import MAX_ENVELOPE_NBYTES
from workers.dump.formats.header import ReadAt, TensorHeader, read_exactly
from workers.dump.formats.pt_alike_pickles import MAX_NBYTES, CutPickle
from workers.dump.formats.zip_archive import (
    END_NBYTES,
    ENTRY_NBYTES,
    LOCAL_MAGIC,
    LOCAL_NBYTES,
    TOO_SMALL,
    Archive,
    Member,
)

T = TypeVar("T")


class ReadArchive(NamedTuple):
    """A file of `torch.save` that was read, to be remembered for those that are like it."""

    read: ReadAt
    """Reads parts of the file."""
    file_size: int
    """Bytes of the file."""
    archive: Archive
    used: Sequence[Member]
    """The member with the pickle, the one with the byte order if there is one, and those with the storages of
    tensors."""
    headers: tuple[TensorHeader, ...]
    """What it consists of."""


_Find: TypeAlias = Callable[[bytes], CutPickle[T] | None]
_Fields: TypeAlias = tuple[Any, ...]

#: How many structures are remembered, how many tensors of each, and how many members each may have.
_MAX_KNOWN, _MAX_TENSORS, _MAX_MEMBERS = 64, 256, 16
_MAX_DIRECTORY_NBYTES = 8192
#: The record at the end: magic and disk, members (twice), length and offset of the directory, comment.
_END = struct.Struct("<8s2H2IH")
_END_MAGIC = b"PK\x05\x06\0\0\0\0"
#: An entry of the directory: magic to method, sizes, lengths and attributes, place; then the name of the
#: file, and what follows it. Time and checksum are skipped.
_ENTRY = "12s8x2I14sI{}s{}s"
_METHOD, _STORED, _NBYTES, _LENGTHS, _OFFSET, _STEM, _REST, _FIELDS = range(8)
_TOO_SMALL = TOO_SMALL.to_bytes(4, "little")
_LOCAL = struct.Struct("<4s22s2H")
_PICKLE: Final = b"/data.pkl"
#: Where a header has the place of its payload, the envelope, and its record.
_PLACE, _TAIL, _RECORD = (TensorHeader._fields.index(name) for name in ("offset", "tail", "record"))


class _OneTensor(NamedTuple, Generic[T]):
    """The only tensor of an archive."""

    described: T
    """What its pickle describes: kept, because it is known by its identity."""
    storage_nbytes: int
    first: int
    """Where it begins in its storage."""
    header: TensorHeader
    before: str
    """What stands in its record before the attributes of the file."""


class _DirectoryEntry(NamedTuple):
    """An entry of a directory, without what varies."""

    method: bytes
    """Magic to method."""
    name_nbytes: int
    """The length of its name without that of the file."""
    lengths: bytes
    """What stands behind the length of its name: other lengths, and attributes."""
    rest: bytes
    """What stands behind the name of the file."""


class _Layout(NamedTuple):
    """How a directory is cut, if the name of the file has a certain length."""

    cut: struct.Struct
    expected: _Fields
    """What `_AlikeDirectory.unvarying` returns."""


@dataclass(slots=True)
class _AlikeDirectory(Generic[T]):
    """The directory of an archive, and where in it stands what."""

    key: tuple[int, int]
    """Number of members, and length without the name of the file."""
    entries: tuple[_DirectoryEntry, ...]
    unvarying: Callable[[_Fields], _Fields]
    used: tuple[int, ...]
    """Where the fields of the pickle begin, those of the storage, and those of the byte order if there is
    one."""
    byte_order: bytes
    tensors: dict[int, _OneTensor[T]] = field(default_factory=dict)
    """By identity of what the pickle describes."""
    layouts: dict[int, _Layout] = field(default_factory=dict)
    """By length of the name of the file."""

    @property
    def told(self) -> tuple[object, ...]:
        """What is the same for files of the same directory."""
        return self.entries, self.used, self.byte_order

    def layout(self, stem_n: int) -> _Layout:
        """Return how a directory is cut if the name of the file has this length."""
        if stem_n not in self.layouts:
            cut = "".join(_ENTRY.format(stem_n, len(entry.rest)) for entry in self.entries)
            expected = [
                (method, struct.pack("<H", stem_n + name_nbytes) + lengths, rest)
                for method, name_nbytes, lengths, rest in self.entries
            ]
            self.layouts[stem_n] = _Layout(struct.Struct(f"<{cut}"), tuple(chain.from_iterable(expected)))
        return self.layouts[stem_n]


class AlikeArchives(Generic[T]):
    """The structures of the archives with one tensor that were read last."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _AlikeDirectory[T]] = {}
        """By `_AlikeDirectory.key`."""

    def headers_of(self, read: ReadAt, file_size: int, find: _Find[T]) -> tuple[TensorHeader, ...] | None:
        """Return the parts of a file that is like one that was remembered; None for any other.

        Args:
            read: reads parts of the file.
            file_size: bytes of the file.
            find: returns a pickle with what it describes; None if it is like none before.
        """
        opened = self._open(read, file_size) if self._known else None
        places = _places(read, *opened) if opened else None
        if opened is None or places is None:
            return None
        pickle, (storage, storage_n) = places
        known = find(read(*pickle)) if pickle[1] <= MAX_NBYTES else None
        tensor = opened[0].tensors.get(id(known.described)) if known else None
        if known is None or tensor is None or storage_n != tensor.storage_nbytes:
            return None
        return _placed(read, file_size, tensor, storage + tensor.first, known.attributes)

    def _open(self, read: ReadAt, file_size: int) -> tuple[_AlikeDirectory[T], _Fields, int] | None:
        """Return the known directory that is like that of a file; the fields of the latter, and its place."""
        if file_size < END_NBYTES + LOCAL_NBYTES:
            return None
        directory = _directory_of(read_exactly(read, file_size - END_NBYTES, END_NBYTES), file_size)
        magic, _, name_n, _ = _LOCAL.unpack(read_exactly(read, 0, LOCAL_NBYTES))
        stem_n = name_n - len(_PICKLE)
        if directory is None or magic != LOCAL_MAGIC or stem_n < 1:
            return None
        count, offset, nbytes = directory
        alike = self._known.get((count, nbytes - count * stem_n))
        if alike is None:
            return None
        entries = read_exactly(read, offset, nbytes)
        layout = alike.layouts.get(stem_n) or alike.layout(stem_n)
        fields = layout.cut.unpack(entries)
        stems = fields[_STEM::_FIELDS]
        is_same = alike.unvarying(fields) == layout.expected and stems.count(stems[0]) == count
        # A figure that is too small for its field is elsewhere; no other four bytes of 0xFF are usual.
        is_plain = b"/" not in stems[0] and _TOO_SMALL not in entries
        return (alike, fields, offset) if is_same and is_plain else None

    def remember(self, file: ReadArchive, *, described: T, attributes: str) -> None:
        """Remember a file, if it holds one tensor.

        Args:
            file: the file.
            described: what its pickle describes.
            attributes: the attributes of the file, as JSON.
        """
        (header, *others), storage = file.headers, file.used[-1]
        before = header.record.removesuffix(f"{attributes}}}")
        if others or header.view is not None or before == header.record:
            return
        known = self._same_or_new(_read_directory(file))
        if known is None:
            return
        if len(known.tensors) >= _MAX_TENSORS:
            known.tensors.clear()
        first = header.offset - file.archive.place(file.read, storage)[0]
        known.tensors[id(described)] = _OneTensor(described, storage.nbytes, first, header, before)

    def _same_or_new(self, new: _AlikeDirectory[T] | None) -> _AlikeDirectory[T] | None:
        """Return the directory that is remembered: the one before it, if that is the same."""
        if new is None:
            return None
        known = self._known.get(new.key)
        if known is None or known.told != new.told:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[new.key] = new
        return known


def _directory_of(end: bytes, file_size: int) -> tuple[int, int, int] | None:
    """Return number of members, offset and length of a directory, if this record has them."""
    magic, _, count, nbytes, offset, comment_n = _END.unpack(end)
    # Between them, torch writes the records of a zip64, which repeat the figures.
    is_inside = offset + nbytes <= file_size - END_NBYTES and offset < TOO_SMALL
    if magic != _END_MAGIC or comment_n or not is_inside or nbytes > _MAX_DIRECTORY_NBYTES or not count:
        return None
    return count, offset, nbytes


def _places(
    read: ReadAt, alike: _AlikeDirectory[Any], fields: _Fields, end: int
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return offset and length of pickle and storage; None if something is not as in the known directory."""
    pickle, storage, *orders = [_content(read, fields, at, end) for at in alike.used]
    for order in orders:
        if order is None or read(*order) != alike.byte_order:
            return None
    return (pickle, storage) if pickle and storage else None


def _placed(
    read: ReadAt, file_size: int, tensor: _OneTensor[Any], offset: int, attributes: str
) -> tuple[TensorHeader, ...] | None:
    """Return the header of a tensor at a place; None if its envelope is long."""
    known = tensor.header
    nbytes = known.nbytes
    behind = offset + nbytes
    if max(offset, file_size - behind) > MAX_ENVELOPE_NBYTES:
        return None
    lead = read_exactly(read, 0, offset)
    tail = read_exactly(read, behind, file_size - behind)
    record = f"{tensor.before}{attributes}}}"
    values = (*known[:_PLACE], offset, nbytes, lead, tail, *known[_TAIL + 1 : _RECORD], record)
    return (TensorHeader._make((*values, *known[_RECORD + 1 :])),)


def _content(read: ReadAt, fields: _Fields, entry: int, end: int) -> tuple[int, int] | None:
    """Return offset and length of a member; None if it is not before byte `end`."""
    header, nbytes = fields[entry + _OFFSET], fields[entry + _NBYTES]
    if nbytes != fields[entry + _STORED] or header + LOCAL_NBYTES > end:
        return None
    magic, _, name_n, extra_n = _LOCAL.unpack(read_exactly(read, header, LOCAL_NBYTES))
    offset = header + LOCAL_NBYTES + name_n + extra_n
    return (offset, nbytes) if magic == LOCAL_MAGIC and offset + nbytes <= end else None


def _read_directory(file: ReadArchive) -> _AlikeDirectory[Any] | None:
    """Return the directory of a file; None if it is not as torch writes one for a single storage."""
    read, file_size, archive, used, _ = file
    place = _directory_of(read_exactly(read, file_size - END_NBYTES, END_NBYTES), file_size)
    pickled, storage = used[0], used[-1]
    orders = [member for member in used[1:-1] if member.name.endswith("/byteorder")]
    is_single = len(used) == 2 + len(orders) and "/data/" in storage.name and not pickled.header_offset
    if place is None or not is_single or not place[0] == len(archive.members) <= _MAX_MEMBERS:
        return None
    names = list(archive.members)
    first_fields = tuple(names.index(member.name) * _FIELDS for member in (pickled, storage, *orders))
    byte_order = read_exactly(read, *archive.place(read, orders[0])) if orders else b""
    return _parse_directory(read_exactly(read, *place[1:]), place[0], first_fields, byte_order)


def _parse_directory(
    directory: bytes, count: int, used: tuple[int, ...], byte_order: bytes
) -> _AlikeDirectory[Any] | None:
    """Return what is to be known of a directory; None if names do not begin with that of the file."""
    places, at = [], 0
    for _ in range(count):
        name_n, extra_n, comment_n = struct.unpack_from("<3H", directory, at + 28)
        end = at + ENTRY_NBYTES + name_n + extra_n + comment_n
        places.append((at, name_n, end))
        at = end
    stem_n = places[used[0] // _FIELDS][1] - len(_PICKLE)
    if at != len(directory) or min(name_n for _, name_n, _ in places) < stem_n:
        return None
    stems = {directory[at + ENTRY_NBYTES :][:stem_n] for at, _, _ in places}
    entries = tuple(
        _DirectoryEntry(
            directory[at : at + 12],
            name_n - stem_n,
            directory[at + 30 : at + 42],
            directory[at + ENTRY_NBYTES + stem_n : end],
        )
        for at, name_n, end in places
    )
    parts = (_METHOD, _LENGTHS, _REST)
    unvarying = itemgetter(*(entry * _FIELDS + part for entry in range(count) for part in parts))
    key = count, len(directory) - count * stem_n
    return _AlikeDirectory(key, entries, unvarying, used, byte_order) if len(stems) == 1 else None
