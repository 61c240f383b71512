"""The members of a zip archive: where their bytes are in the file, without reading them.

Format: PKWARE's APPNOTE.TXT, 4.3.7, 4.3.12, 4.3.14, 4.3.15 and 4.3.16. `zipfile` is not used because the
place of a member is needed and not its content, and because every figure is checked against the size of the
file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from workers.dump.formats.header import ReadAt, Truncated, read_exactly
from workers.errors import UnreadableTensor

LOCAL_MAGIC = b"PK\x03\x04"
#: The largest directory that is read: enough for 200,000 members.
MAX_DIRECTORY_NBYTES = 16 * 1024 * 1024
_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR64 = struct.Struct("<4sIQI")
END = struct.Struct("<4s4H2IH")
_MAX_COMMENT_NBYTES = 65535
#: Bytes of the fixed parts of the record at the end, an entry of the directory, and the header of a member.
END_NBYTES, ENTRY_NBYTES, LOCAL_NBYTES = END.size, _ENTRY.size, _LOCAL.size
_ENCRYPTED = 1
#: In the place of a figure that 32 bits cannot hold.
TOO_SMALL = 0xFFFFFFFF
_DEFLATED = 8


class Member(NamedTuple):
    """One member of the archive, as its central directory describes it.

    A tuple, because a small file has seven, and a frozen dataclass takes four times as long to make.
    """

    name: str
    method: int
    flags: int
    stored_nbytes: int
    nbytes: int
    header_offset: int
    crc: int

    @property
    def is_deflated(self) -> bool:
        """Whether it is compressed in the way that every program knows."""
        return self.method == _DEFLATED and not self.flags & _ENCRYPTED

    @property
    def is_stored(self) -> bool:
        """Whether its bytes are in the file as they are."""
        return self.method == 0 and not self.flags & _ENCRYPTED and self.stored_nbytes == self.nbytes


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip archive, from its central directory. Members lie before it."""

    members: Mapping[str, Member]
    directory_offset: int

    def place(self, read: ReadAt, member: Member, *, compressed: bool = False) -> tuple[int, int]:
        """Return offset and length of the content of a member, or of its compressed bytes.

        Raises:
            UnreadableTensor: it is compressed or encrypted, or not inside of the archive.
        """
        if not compressed and not member.is_stored:
            raise UnreadableTensor(f"its member {member.name:.80} is compressed or encrypted")
        if member.header_offset + _LOCAL.size > self.directory_offset:
            raise UnreadableTensor(f"its member {member.name:.80} is outside of the archive")
        header = _LOCAL.unpack(read_exactly(read, member.header_offset, _LOCAL.size))
        if header[0] != LOCAL_MAGIC:
            raise UnreadableTensor(
                f"its member {member.name:.80} has no header at byte {member.header_offset}"
            )
        offset = member.header_offset + _LOCAL.size + int(header[-2]) + int(header[-1])
        if offset + member.stored_nbytes > self.directory_offset:
            raise UnreadableTensor(
                f"its member {member.name:.80} of {member.stored_nbytes} bytes is outside of the archive"
            )
        return offset, member.stored_nbytes


def open_archive(read: ReadAt, file_size: int) -> Archive:
    """Return the archive that a file is. Reads its end.

    Raises:
        Truncated: the file ends before the zip does.
        UnreadableTensor: it is damaged.
    """
    end_offset, end = _find_end(read, file_size)
    _, _, _, _, count, nbytes, offset, _ = END.unpack(end)
    if count == 0xFFFF or TOO_SMALL in (nbytes, offset):
        nbytes, offset = _read_end64(read, end_offset)
    if offset + nbytes > end_offset:
        raise UnreadableTensor(
            f"its zip directory of {nbytes} bytes at {offset} does not fit before {end_offset}"
        )
    if nbytes > MAX_DIRECTORY_NBYTES:
        raise UnreadableTensor(f"its zip directory has {nbytes} bytes")
    return Archive(_parse_directory(read_exactly(read, offset, nbytes)), offset)


def _find_end(read: ReadAt, file_size: int) -> tuple[int, bytes]:
    # torch writes no comment, so the record is nearly always the last 22 bytes.
    for nbytes in (END.size, END.size + _MAX_COMMENT_NBYTES):
        start = max(file_size - nbytes, 0)
        last = read_exactly(read, start, file_size - start)
        at = last.rfind(b"PK\x05\x06")
        while at >= 0:
            end = last[at : at + END.size]
            if len(end) == END.size and at + END.size + int.from_bytes(end[20:], "little") == len(last):
                return start + at, end
            at = last.rfind(b"PK\x05\x06", 0, at)
    raise Truncated(f"has {file_size} bytes, but no end record of a zip")


def _read_end64(read: ReadAt, end_offset: int) -> tuple[int, int]:
    """Return size and offset of the central directory of a zip of more than 4 GiB."""
    if end_offset < LOCATOR64.size:
        raise UnreadableTensor("its zip lacks the zip64 record that it needs")
    magic, _, offset, _ = LOCATOR64.unpack(read_exactly(read, end_offset - LOCATOR64.size, LOCATOR64.size))
    if magic != b"PK\x06\x07" or offset + _END64.size > end_offset:
        raise UnreadableTensor("its zip lacks the zip64 record that it needs")
    magic, *_, nbytes, directory_offset = _END64.unpack(read_exactly(read, offset, _END64.size))
    if magic != b"PK\x06\x06":
        raise UnreadableTensor("its zip64 record is damaged")
    return nbytes, directory_offset


def _parse_directory(directory: bytes) -> dict[str, Member]:
    members: dict[str, Member] = {}
    at = 0
    while at < len(directory):
        if len(directory) - at < _ENTRY.size:
            raise UnreadableTensor(f"its zip directory ends in the middle of an entry, at byte {at}")
        magic, _, _, flags, method, _, _, crc, stored, nbytes, *lengths, _, _, _, offset = _ENTRY.unpack_from(
            directory, at
        )
        name_n, extra_n, _ = lengths
        after = at + _ENTRY.size + sum(lengths)
        if magic != b"PK\x01\x02" or after > len(directory):
            raise UnreadableTensor(f"its zip directory is damaged at byte {at}")
        at += _ENTRY.size
        name = directory[at : at + name_n].decode(errors="replace")
        if TOO_SMALL in (nbytes, stored, offset):
            extra = directory[at + name_n :][:extra_n]
            nbytes, stored, offset = _wide_figures(extra, [nbytes, stored, offset])
        if name in members:
            raise UnreadableTensor(f"its zip has two members named {name:.80}")
        members[name] = Member(name, method, flags, stored, nbytes, offset, crc)
        at = after
    return members


def _wide_figures(extra: bytes, figures: list[int]) -> list[int]:
    wide = b""
    while len(extra) >= 4:
        kind, nbytes = struct.unpack_from("<2H", extra)
        if kind == 1:
            wide = extra[4 : 4 + nbytes]
        extra = extra[4 + nbytes :]
    result = []
    for figure in figures:
        if figure == TOO_SMALL:
            if len(wide) < 8:
                raise UnreadableTensor("its zip directory lacks a 64-bit figure")
            figure, wide = int.from_bytes(wide[:8], "little"), wide[8:]  # noqa: PLW2901 the wide one instead
        result.append(figure)
    return result
