"""A file that the user has named: it is there when it is complete, or an older one stays as it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from workers.errors import DumpIngestError, UsageError
from workers.store.backends.new_file import NewFile

#: Errors of a disk, which another name in the same place does not avoid.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class Writable(Protocol):
    """What bytes can be written to."""

    def write(self, piece: bytes | memoryview, /) -> object:
        """Add a piece."""


@contextmanager
def output_file(path: Path) -> Iterator[Writable]:
    """Open a file for writing; it gets its name, and replaces an older file, when the block ends.

    If the block raises an error, nothing of the file is left. What is not a file, such as `/dev/stdout`, is
    written directly.

    Raises:
        UsageError: the directory does not exist, or may not be written.
        DumpIngestError: the disk is full, or reports an error.
    """
    with translated(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield _Unseekable(file)
        else:
            with _replacing(path.resolve()) as new:
                yield new


class _Unseekable:
    """A file to which bytes are only added. Numpy asks a file of Python for its position; a pipe has none."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, piece: bytes | memoryview, /) -> None:
        self._file.write(piece)


@contextmanager
def _replacing(path: Path) -> Iterator[NewFile]:
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    file = NewFile(str(path))
    try:
        yield file
        file.close()
    except BaseException:
        file.drop()
        raise


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise errors of the operating system in the block as errors that name a file and what to do."""
    try:
        yield
    except DumpIngestError:  # of the store that the content comes from; some of them are `OSError`, too
        raise
    except OSError as exc:
        raise unwritable(path, exc) from exc


def unwritable(path: Path, exc: OSError) -> DumpIngestError:
    """Return the error to raise for a file that cannot be written."""
    message = f"{path} cannot be written: {exc.strerror or exc}"
    if exc.errno in _DISK_ERRORS:
        return DumpIngestError(message, hint="Make room, or name a place on another disk.")
    return UsageError(message, hint="Name a place where you may write.")
