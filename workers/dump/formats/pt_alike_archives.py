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
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from workers.dump.formats.assembly import MAX_AROUND_NBYTES
from workers.dump.formats.header import ReadAt, TensorHeader, read_exactly
from workers.dump.formats.pt_alike_pickles import MAX_NBYTES
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
_Find: TypeAlias = Callable[[bytes], tuple[T, str] | None]
_Fields: TypeAlias = tuple[Any, ...]

#: How many structures are remembered, how many tensors of each, and how many members each may have.
_MAX_KNOWN, _MAX_TENSORS, _MAX_MEMBERS = 64, 256, 16
_MAX_DIRECTORY_NBYTES = 8192
#: The record at the end: magic and disk, members (twice), length and offset of the directory, comment.
_END = struct.Struct("<8s2H2IH")
_END_MAGIC = b"PK\x05\x06\0\0\0\0"
#: An entry of the directory: magic to method, time and checksum, sizes, length of the name, other lengths,
#: attributes, place; then the name of the file, and what follows it.
_ENTRY = "12s8s2IH4s8sI{}s{}s"
_METHOD, _STORED, _NBYTES, _NAME_LENGTH, _LENGTHS, _ATTRIBUTES, _OFFSET, _STEM, _REST, _FIELDS = (
    0,
    *range(2, 11),
)
_LOCAL = struct.Struct("<4s22s2H")
_PICKLE: Final = b"/data.pkl"


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


@dataclass(slots=True)
class _AlikeDirectory(Generic[T]):
    """The directory of an archive, and where in it stands what."""

    key: tuple[int, int]
    """Number of members, and length without the name of the file."""
    suffixes: tuple[int, ...]
    """The length of each name without that of the file."""
    rests: tuple[int, ...]
    """For each entry, how much follows the name of the file."""
    expected: _Fields
    """What `unvarying` returns."""
    unvarying: Callable[[_Fields], _Fields]
    used: tuple[int, ...]
    """The entries of the pickle and the storage, and that of the byte order if there is one."""
    byte_order: bytes
    tensors: dict[int, _OneTensor[T]] = field(default_factory=dict)
    """By identity of what the pickle describes."""
    layouts: dict[int, tuple[struct.Struct, tuple[int, ...]]] = field(default_factory=dict)
    """By length of the name of the file: the fields of the directory, and the lengths of all names."""

    @property
    def told(self) -> tuple[object, ...]:
        """What is the same for files of the same directory."""
        return self.suffixes, self.expected, self.used, self.byte_order

    def layout(self, stem_n: int) -> tuple[struct.Struct, tuple[int, ...]]:
        """Return the fields of a directory, and the lengths of the names in it."""
        if stem_n not in self.layouts:
            entries = (_ENTRY.format(stem_n, rest) for rest in self.rests)
            self.layouts[stem_n] = (
                struct.Struct("<" + "".join(entries)),
                tuple(stem_n + suffix for suffix in self.suffixes),
            )
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
            find: returns what a pickle describes, and its attributes as JSON; None if it is like none before.
        """
        opened = self._open(read, file_size) if self._known else None
        places = _places(read, *opened) if opened else None
        if opened is None or places is None:
            return None
        (pickle, pickle_n), (storage, storage_n) = places
        known = find(read(pickle, pickle_n)) if pickle_n <= MAX_NBYTES else None
        tensor = opened[0].tensors.get(id(known[0])) if known else None
        if known is None or tensor is None or storage_n != tensor.storage_nbytes:
            return None
        return _placed(read, file_size, tensor, storage + tensor.first, known[1])

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
        layout, name_lengths = alike.layout(stem_n)
        fields = layout.unpack(read_exactly(read, offset, nbytes))
        is_same = alike.unvarying(fields) == alike.expected and fields[_NAME_LENGTH::_FIELDS] == name_lengths
        return (alike, fields, offset) if is_same and _is_plain(fields, count) else None

    def remember(
        self,
        read: ReadAt,
        file_size: int,
        archive: Archive,
        used: Sequence[Member],
        headers: Sequence[TensorHeader],
        *,
        described: T,
        attributes: str,
    ) -> None:
        """Remember a file, if it holds one tensor.

        Args:
            read: reads parts of the file.
            file_size: bytes of the file.
            archive: the archive that it is.
            used: the member with the pickle, the one with the byte order if there is one, and those with the
                storages of tensors.
            headers: what it consists of.
            described: what its pickle describes.
            attributes: the attributes of the file, as JSON.
        """
        (header, *others), storage = headers, used[-1]
        before = header.record.removesuffix(f"{attributes}}}")
        if others or header.view is not None or before == header.record:
            return
        known = self._same_or_new(_read_directory(read, file_size, archive, used))
        if known is None:
            return
        if len(known.tensors) >= _MAX_TENSORS:
            known.tensors.clear()
        first = header.offset - archive.place(read, storage)[0]
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
    places = [_content(read, fields, entry * _FIELDS, end) for entry in alike.used]
    pickle, storage, *order = places
    if pickle is None or storage is None or None in order:
        return None
    if any(place and read(*place) != alike.byte_order for place in order):
        return None
    return pickle, storage


def _is_plain(fields: _Fields, count: int) -> bool:
    """Return whether all names begin with the same one, and all figures stand in the directory itself."""
    stems = fields[_STEM::_FIELDS]
    figures = (fields[part::_FIELDS] for part in (_STORED, _NBYTES, _OFFSET))
    return (
        stems.count(stems[0]) == count and b"/" not in stems[0] and not any(TOO_SMALL in f for f in figures)
    )


def _placed(
    read: ReadAt, file_size: int, tensor: _OneTensor[Any], offset: int, attributes: str
) -> tuple[TensorHeader, ...] | None:
    """Return the header of a tensor at a place; None if what stands around it is long."""
    behind = offset + tensor.header.nbytes
    if max(offset, file_size - behind) > MAX_AROUND_NBYTES:
        return None
    lead = read_exactly(read, 0, offset)
    tail = read_exactly(read, behind, file_size - behind)
    record = f"{tensor.before}{attributes}}}"
    return (tensor.header._replace(offset=offset, lead=lead, tail=tail, record=record),)


def _content(read: ReadAt, fields: _Fields, entry: int, end: int) -> tuple[int, int] | None:
    """Return offset and length of a member; None if it is not before byte `end`."""
    header, nbytes = fields[entry + _OFFSET], fields[entry + _NBYTES]
    if nbytes != fields[entry + _STORED] or header + LOCAL_NBYTES > end:
        return None
    magic, _, name_n, extra_n = _LOCAL.unpack(read_exactly(read, header, LOCAL_NBYTES))
    offset = header + LOCAL_NBYTES + name_n + extra_n
    return (offset, nbytes) if magic == LOCAL_MAGIC and offset + nbytes <= end else None


def _read_directory(
    read: ReadAt, file_size: int, archive: Archive, used: Sequence[Member]
) -> _AlikeDirectory[Any] | None:
    """Return the directory of a file; None if it is not as torch writes one for a single storage."""
    place = _directory_of(read_exactly(read, file_size - END_NBYTES, END_NBYTES), file_size)
    pickled, storage = used[0], used[-1]
    orders = [member for member in used[1:-1] if member.name.endswith("/byteorder")]
    is_single = len(used) == 2 + len(orders) and "/data/" in storage.name and not pickled.header_offset
    if place is None or not is_single or not place[0] == len(archive.members) <= _MAX_MEMBERS:
        return None
    names = list(archive.members)
    entries = tuple(names.index(member.name) for member in (pickled, storage, *orders))
    byte_order = read_exactly(read, *archive.place(read, orders[0])) if orders else b""
    return _parse_directory(read_exactly(read, *place[1:]), place[0], entries, byte_order)


def _parse_directory(
    directory: bytes, count: int, used: tuple[int, ...], byte_order: bytes
) -> _AlikeDirectory[Any] | None:
    """Return what is to be known of a directory; None if names do not begin with that of the file."""
    lengths, at = [], 0
    for _ in range(count):
        lengths.append(struct.unpack_from("<3H", directory, at + 28))
        at += ENTRY_NBYTES + sum(lengths[-1])
    stem_n = lengths[used[0]][0] - len(_PICKLE)
    if at != len(directory) or min(name_n for name_n, *_ in lengths) < stem_n:
        return None
    parts = (_METHOD, _LENGTHS, _ATTRIBUTES, _REST)
    new: _AlikeDirectory[Any] = _AlikeDirectory(
        key=(count, len(directory) - count * stem_n),
        suffixes=tuple(name_n - stem_n for name_n, *_ in lengths),
        rests=tuple(sum(each) - stem_n for each in lengths),
        expected=(),
        unvarying=itemgetter(*(entry * _FIELDS + part for entry in range(count) for part in parts)),
        used=used,
        byte_order=byte_order,
    )
    fields = new.layout(stem_n)[0].unpack(directory)
    new.expected = new.unvarying(fields)
    stems = fields[_STEM::_FIELDS]
    return new if stems.count(stems[0]) == count else None
