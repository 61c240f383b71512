"""Files of a dump: where they are, and what is read of them."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workers.dump import paths
from workers.dump.source import OpenFile
from workers.errors import AccessDenied, DumpError, SourceChanged
from workers.model import SourceFile

# Only regular files are read, only as they were planned, and only below the dump.


def listed(path: Path) -> SourceFile:
    found = path.lstat()
    return SourceFile(path.name, found.st_size, found.st_mtime_ns)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    return path


def read(path: Path, source: SourceFile, *, buffer: int = 1000, header: bytes = b"") -> list[bytes]:
    with OpenFile(path.parent, source, "rank 0 step 1") as opened:
        view, begin = memoryview(bytearray(buffer)), len(header)
        return [bytes(piece) for piece in opened.pieces(view, begin, source.size - begin, header)]


@pytest.mark.parametrize("buffer", [1, 7, 50, 90, 100, 1000])
@pytest.mark.parametrize("header", [0, 10])
def test_pieces_make_the_payload(file: Path, buffer: int, header: int) -> None:
    content = file.read_bytes()
    pieces = read(file, listed(file), buffer=buffer, header=content[:header])
    assert b"".join(pieces) == content[header:]
    assert {len(piece) for piece in pieces[:-1]} <= {buffer}


def test_grown_file_has_changed(file: Path) -> None:
    source = listed(file)
    with file.open("ab") as more:
        more.write(b"x")
    with pytest.raises(SourceChanged, match=r"\(100 bytes planned, 101 now\)"):
        read(file, source)


def test_rewritten_file_of_the_same_size_has_changed(file: Path) -> None:
    source = listed(file)
    file.write_bytes(bytes(100))
    os.utime(file, ns=(0, source.mtime_ns + 1))
    with pytest.raises(SourceChanged, match=r"\(its size is the same\)"):
        read(file, source)


def test_other_header_is_noticed_even_if_the_times_agree(file: Path) -> None:
    """Copying tools restore times; the shape would silently be that of another file."""
    with pytest.raises(SourceChanged, match="header"):
        read(file, listed(file), header=b"other")


def test_change_while_reading_is_noticed(file: Path) -> None:
    source = listed(file)
    with OpenFile(file.parent, source, "") as opened:
        assert opened.read_at(0, 1)
        os.utime(file, ns=(0, 0))
        with pytest.raises(SourceChanged):
            opened.check_unchanged()


def test_file_that_shrinks_while_reading_has_changed(file: Path) -> None:
    with OpenFile(file.parent, listed(file), "") as opened:
        pieces = opened.pieces(memoryview(bytearray(60)), 0, 100)
        next(pieces)
        os.truncate(file, 70)
        with pytest.raises(SourceChanged, match="ended at byte"):
            next(pieces)


def test_symbolic_link_in_the_place_of_a_listed_file_is_not_followed(file: Path, tmp_path: Path) -> None:
    """A link that appears later must not lead out of the dump, and is a change like any other."""
    source = listed(file)
    outside = tmp_path / "outside"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside)
    with pytest.raises(SourceChanged):
        read(file, source)


def test_fifo_in_the_place_of_a_listed_file_does_not_hang(file: Path) -> None:
    source = listed(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(SourceChanged):
        read(file, source)


def test_directory_that_became_a_file_has_changed(tmp_path: Path) -> None:
    below = tmp_path / "directory" / "file"
    below.parent.mkdir()
    below.touch()
    source = SourceFile("directory/file", 0, below.stat().st_mtime_ns)
    below.unlink()
    below.parent.rmdir()
    below.parent.touch()
    with pytest.raises(SourceChanged), OpenFile(tmp_path, source, ""):
        pass


@pytest.mark.parametrize("path", ["../file", "/etc/passwd"])
def test_no_file_outside_of_the_dump_is_opened(path: str, tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="leaves"):
        OpenFile(tmp_path, SourceFile(path, 0, 0), "")


def test_denied_file_says_what_to_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root nothing is denied, so the refusal is made up."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    source = listed(file)
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(AccessDenied, match="file: permission denied") as found:
        read(file, source)
    assert "setfacl" in found.value.hint


# Paths survive the way through text, and none leaves the dump.


raw_names = st.binary(min_size=1, max_size=40).filter(lambda raw: b"\0" not in raw)


@given(raw_names)
@example(b"%")
@example(b"%25")
@example(b"%FF\xff")
@example(b"\xc3%A9\xc3\xa9")
@example("Grüße/层".encode())
def test_any_bytes_come_back_from_text(raw: bytes) -> None:
    """File names are bytes; columns of the index are Unicode."""
    path = os.fsdecode(raw)
    text = paths.to_text(path)
    text.encode("utf-8")
    assert os.fsencode(paths.from_text(text)) == raw


@given(raw_names, raw_names)
def test_different_paths_have_different_texts(one: bytes, other: bytes) -> None:
    same = paths.to_text(os.fsdecode(one)) == paths.to_text(os.fsdecode(other))
    assert same == (one == other)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "a\0b", "/"])
def test_no_path_leaves_its_root(path: str) -> None:
    with pytest.raises(DumpError):
        paths.inside(Path("/dump"), path)
