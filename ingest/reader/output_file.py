"""A file that the user has named: it is there when it is complete, or an older one stays as it was."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from workers.errors import DumpIngestError, UsageError
from workers.store.backends.local import NewFile

#: Errors of a disk, which another name in the same place does not avoid.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class Writable(Protocol):
    """What bytes can be written to."""

    def write(self, piece: bytes | memoryview, /) -> object:
        """Add a piece."""


@contextmanager
def output_file(path: Path) -> Iterator[Writable]:
    """Open a file for writing; it gets its name, and replaces an older file, when the block ends.

    The new file has the mode of the older one. If the block raises an error, nothing of the file is left.
    What is not a file, such as `/dev/stdout`, is written directly.

    Raises:
        UsageError: the file would lie in a store, or the directory does not exist or may not be written.
        DumpIngestError: the disk is full, or reports an error.
    """
    with translated(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield _Unseekable(file)
        else:
            if any((parent / "zarr.json").is_file() for parent in path.resolve().parents):
                # Deferred: it takes 0.1 s, and stores are rare.
                from ingest.reader.require import refuse_in_store

                refuse_in_store(path)
            with _replacing(path.resolve()) as new:
                yield new


class _Unseekable:
    """A file to which bytes are only added. Numpy asks a file of Python for its position; a pipe has none."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, piece: bytes | memoryview, /) -> None:
        self._file.write(piece)


@contextmanager
def _replacing(path: Path) -> Iterator[Writable]:
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    older = path.stat() if path.exists() else None
    try:
        file = NewFile(str(path))
    except OSError:
        if older is None or not os.access(path, os.W_OK):
            raise
        with _overwriting(path) as content:
            yield content
        return
    try:
        if older is not None:
            file.set_mode(stat.S_IMODE(older.st_mode))
        yield file
        file.close()
    except BaseException:
        file.drop()
        raise


@contextmanager
def _overwriting(path: Path) -> Iterator[Writable]:
    with tempfile.TemporaryFile() as content:
        yield content
        content.seek(0)
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)


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
