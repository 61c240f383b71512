"""A directory into which files are written without following any symbolic link.

Whoever can write to the directory could otherwise have a file written anywhere, in the name of the user. Each
directory below it is opened relative to the one above, and files are opened relative to their directory, so
that a link that appears while files are written is not followed either.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeAlias

from ingest.reader.files.output_file import unwritable
from ingest.reader.require import refuse_in_store
from workers.errors import DumpIngestError, UsageError

#: Names from the target directory to a directory below it.
Parts: TypeAlias = tuple[str, ...]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_LINK_HINT = (
    "A link could lead the file elsewhere. Export into a new directory, or into the one that the link names."
)


class TargetDirectory:
    """The directory, and those below it; a context manager."""

    def __init__(self, path: Path) -> None:
        """Remember the directory; it is created when the first file is opened.

        Links above it are followed: they are part of what the user has named.
        """
        self._path = path
        # Files come by directory, so the last one is nearly always the next one.
        self._opened: tuple[Parts, int] | None = None

    def __enter__(self) -> Self:
        """Return it.

        Raises:
            UsageError: it lies in a store, or is one.
        """
        refuse_in_store(self._path / "file")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def check(self, parts: Parts, name: str) -> bool:
        """Return whether there is a file of this name already.

        Raises:
            UsageError: it is a directory; or it, or a directory on the way to it, is a symbolic link.
        """
        try:
            directory = self._directory(parts, create=False)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise self._complaint(parts, name, exc) from exc
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(status.st_mode):
            raise _link(self._path.joinpath(*parts, name))
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(
                f"{self._path.joinpath(*parts, name)} is a directory, where a file is to be written",
                hint="Export into an empty directory, or remove this one.",
            )
        return True

    def open(self, parts: Parts, name: str) -> BinaryIO:
        """Open a file for writing, at its begin; create it, and the directories on the way, if missing.

        Raises:
            UsageError: it cannot be written, or a part of its path is a symbolic link.
        """
        try:
            directory = self._directory(parts, create=True)
            return os.fdopen(os.open(name, _FILE, 0o666, dir_fd=directory), "wb")
        except OSError as exc:
            raise self._complaint(parts, name, exc) from exc

    def nbytes(self, parts: Parts, name: str) -> int:
        """Return the size of a file that `open` has created."""
        return os.stat(name, dir_fd=self._directory(parts, create=False), follow_symlinks=False).st_size

    def rename(self, parts: Parts, name: str, new: str) -> None:
        """Give a file another name in its directory, in place of a file that has it."""
        directory = self._directory(parts, create=False)
        os.replace(name, new, src_dir_fd=directory, dst_dir_fd=directory)

    def remove(self, parts: Parts, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            os.unlink(name, dir_fd=self._directory(parts, create=False))
        except (FileNotFoundError, NotADirectoryError):
            return

    def _directory(self, parts: Parts, *, create: bool) -> int:
        """Return the descriptor of a directory, which stays open until the next one is asked for."""
        if self._opened is not None and self._opened[0] == parts:
            return self._opened[1]
        self._close()
        if create:
            self._path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, _DIRECTORY)
        for part in parts:
            above = descriptor
            try:
                descriptor = _below(above, part, create=create)
            finally:
                os.close(above)
        self._opened = parts, descriptor
        return descriptor

    def _close(self) -> None:
        if self._opened is not None:
            os.close(self._opened[1])
            self._opened = None

    def _complaint(self, parts: Parts, name: str, exc: OSError) -> DumpIngestError:
        """Return the message for the user; it names the symbolic link if there is one in the way."""
        path = self._path
        if exc.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
            for part in ("", *parts, name):
                path = path / part
                if path.is_symlink():
                    return _link(path)
        return unwritable(self._path.joinpath(*parts, name), exc)


def _below(above: int, part: str, *, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=above)
    return os.open(part, _DIRECTORY, dir_fd=above)


def _link(path: Path) -> UsageError:
    return UsageError(f"{path} is a symbolic link, which export does not follow", hint=_LINK_HINT)
