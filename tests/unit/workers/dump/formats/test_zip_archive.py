"""Members of zip archives are where `zipfile` has written them, and damage is named."""

import io
import struct
import zipfile
import zlib

import pytest

from workers.dump.formats.header import ReadAt, Truncated
from workers.dump.formats.zip_archive import MAX_DIRECTORY_NBYTES, open_archive
from workers.errors import UnreadableTensor

CONTENTS = {"a/data.pkl": b"pickle", "a/data/0": b"x" * 100, "ä": b""}


def made(compression: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as writer:
        for name, content in CONTENTS.items():
            writer.writestr(name, content)
        writer.comment = comment
    return file.getvalue()


def reader(file: bytes) -> ReadAt:
    return lambda offset, nbytes: file[offset : offset + nbytes]


@pytest.mark.parametrize("comment", [b"", b"a comment", b"PK\x05\x06 in a comment"])
def test_stored_members_are_placed_without_reading_them(comment: bytes) -> None:
    file = made(comment=comment)
    archive = open_archive(reader(file), len(file))
    assert list(archive.members) == list(CONTENTS)
    for name, member in archive.members.items():
        offset, nbytes = archive.place(reader(file), member)
        assert file[offset : offset + nbytes] == CONTENTS[name]
        assert member.crc == zlib.crc32(CONTENTS[name])


@pytest.mark.parametrize("cut", [1, 10, 21])
def test_file_that_ends_early_may_still_grow(cut: int) -> None:
    file = made()[:-cut]
    with pytest.raises(Truncated, match="no end record of a zip"):
        open_archive(reader(file), len(file))


def _with(file: bytes, at: int, figure: bytes) -> bytes:
    return file[:at] + figure + file[at + len(figure) :]


def test_damage_is_named() -> None:
    file = made()
    end, directory = len(file) - 22, file.index(b"PK\x01\x02")
    second = file.index(b"PK\x01\x02", directory + 1)
    huge = struct.pack("<I", MAX_DIRECTORY_NBYTES + 1)
    for damaged, message in (
        (_with(file, end + 12, huge), "does not fit before"),
        (_with(file, directory, b"XX"), "directory is damaged at byte 0"),
        (_with(file, second, b"XX"), "directory is damaged at byte"),
        (_with(file, end + 12, struct.pack("<I", second - directory + 3)), "in the middle of an entry"),
        (_with(file, end + 10, b"\xff\xff"), "lacks the zip64 record"),
        (_with(file, directory + 20, b"\xff\xff\xff\xff"), "lacks a 64-bit figure"),
    ):
        with pytest.raises(UnreadableTensor, match=message):
            open_archive(reader(damaged), len(damaged))


def test_two_members_of_one_name_are_refused() -> None:
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as writer:
        writer.writestr("x", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            writer.writestr("x", b"2")
    with pytest.raises(UnreadableTensor, match="two members named x"):
        open_archive(reader(twice.getvalue()), len(twice.getvalue()))
