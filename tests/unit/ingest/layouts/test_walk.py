"""Directories are listed to the last regular file, and nothing leads out of them."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ingest.layouts.detect import find_dump
from ingest.layouts.walk import read_small
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import listings
from workers.model import StepKey


def test_links_and_pipes_are_named_and_not_followed(made: MadeDump) -> None:
    made.add(b"", tensor_name())
    directory = made.directory()
    (directory / "link.npy").symlink_to("/etc/passwd")
    (directory / "tree").symlink_to("/etc", target_is_directory=True)
    os.mkfifo(directory / "pipe")
    listing = listings(made.root)[StepKey(0, 0)]
    assert len(listing.files) == 1
    assert [(Path(problem.path).name, problem.reason.split(";")[0]) for problem in listing.problems] == [
        ("link.npy", "is a symbolic link"),
        ("pipe", "is not a regular file"),
        ("tree", "is a symbolic link"),
    ]


class StaleEntry:
    """An entry of a directory whose kind the file system did not tell, and that cannot be examined."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name, self.path = entry.name, entry.path

    def is_dir(self, **_: bool) -> NoReturn:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.path)

    stat = is_dir


@pytest.mark.parametrize("stale", ["rank_1", "Net", "1", "a.npy"])
def test_an_entry_that_cannot_be_examined_is_named_and_left_out(
    stale: str, made: MadeDump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS answers so for a file or directory that was replaced on another host."""
    for rank in range(2):
        for step in range(2):
            made.add(b"", rank=rank, step=step)
            made.add(b"", "a.npy", rank=rank, step=step)
    scandir = os.scandir

    @contextmanager
    def listed(directory: Any) -> Iterator[Iterator[Any]]:
        with scandir(directory) as entries:
            yield (
                StaleEntry(entry) if entry.name == stale and "rank_0" not in entry.path else entry
                for entry in entries
            )

    monkeypatch.setattr(os, "scandir", listed)
    scan = find_dump(made.root).scan({})
    assert {StepKey(0, 0), StepKey(0, 1)} <= {listing.key for listing in scan.listings}
    problems = [*scan.problems, *(problem for listing in scan.listings for problem in listing.problems)]
    assert {(Path(problem.path).name, problem.reason) for problem in problems} == {
        (stale, "cannot be examined: Stale file handle")
    }


def test_deep_directories_do_not_exhaust_the_stack(made: MadeDump) -> None:
    """A few kilobytes of nested directories must not end the service."""
    made.add(b"")
    fd = os.open(made.directory(), os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        assert len(listings(made.root)[StepKey(0, 0)].files) == 1
    finally:  # shutil would exhaust the stack as well
        subprocess.run(["rm", "-r", str(made.root)], check=True)


def test_small_file_is_read_and_nothing_else(tmp_path: Path) -> None:
    """A link could lead out of the dump, and a pipe would wait for ever."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert read_small(tmp_path / "file") == b"content"
    assert [read_small(tmp_path / name) for name in ("link", "pipe", "missing", ".")] == [None] * 4
