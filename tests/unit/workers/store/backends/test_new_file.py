"""A file under a temporary name: whole when it is closed, gone when it is dropped."""

import errno
import os
from pathlib import Path

import pytest

from workers.store.backends.local import NewFile


def test_it_has_its_name_when_it_is_closed(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c"
    file = NewFile(str(target))
    file.write(b"one ")
    file.write(memoryview(b"two"))
    assert not target.exists()
    file.close()
    file.drop()
    assert target.read_bytes() == b"one two"
    assert list(target.parent.iterdir()) == [target]


def test_it_leaves_nothing_when_it_is_dropped(tmp_path: Path) -> None:
    file = NewFile(str(tmp_path / "a"))
    file.write(b"one")
    file.drop()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_others_remove_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning removes directories that are empty for a moment."""
    makedirs, calls = os.makedirs, 0

    def raced(path: str, *, exist_ok: bool) -> None:
        nonlocal calls
        calls += 1
        makedirs(path, exist_ok=exist_ok)
        if calls < 3:
            Path(path).rmdir()

    monkeypatch.setattr(os, "makedirs", raced)
    file = NewFile(str(tmp_path / "a" / "b"))
    file.close()
    assert (tmp_path / "a" / "b").exists()
    assert calls == 3


def test_a_disk_that_refuses_twice_leaves_nothing_and_the_first_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems report ENOSPC for a write, and again when the file is closed."""
    file = NewFile(str(tmp_path / "a"))
    really_close = os.close

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(fd: int) -> None:
        really_close(fd)
        refuse()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        patched.setattr(os, "close", close)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"one")
        file.drop()
    assert list(tmp_path.iterdir()) == []
