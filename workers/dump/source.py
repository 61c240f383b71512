"""Reading dump files: only regular files, only as large as planned, and only if they hold still."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from workers.dump import paths
from workers.errors import AccessDenied, SourceChanged
from workers.model import SourceFile

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # NONBLOCK: never hang on a FIFO


class OpenFile:
    """One dump file, open for reading. A context manager."""

    def __init__(self, root: Path | str, source: SourceFile, where: str) -> None:
        """Open the file if it is what the listing saw; `where` names rank and step in errors.

        Raises:
            SourceChanged: it vanished, or its size or time differ.
            AccessDenied: it may not be read.
            OSError: the disk failed.
        """
        self._source = source
        self._where = where
        # Text, for a `Path` per file costs as much as opening it.
        path = f"{root}/{paths.relative(source.path)}"
        try:
            self._fd = os.open(path, _FLAGS)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise SourceChanged(f"{where}: {source.path} is gone") from exc
        except PermissionError as exc:
            raise AccessDenied(f"{where}: {source.path}: permission denied") from exc
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise SourceChanged(f"{where}: {source.path} is a symbolic link now") from exc
            raise
        try:
            self.check_unchanged()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def check_unchanged(self) -> None:
        """Raise `SourceChanged` if the file is no longer what the listing saw."""
        now = os.fstat(self._fd)
        if not stat.S_ISREG(now.st_mode):
            raise SourceChanged(f"{self._where}: {self._source.path} is no regular file any more")
        if now.st_size != self._source.size or now.st_mtime_ns != self._source.mtime_ns:
            raise SourceChanged(
                f"{self._where}: {self._source.path} changed while it was ingested "
                f"({self._source.size} bytes planned, {now.st_size} now)"
            )

    @property
    def changed_ns(self) -> int:
        """When its inode changed last: writing and renaming set this time, and nobody can set it back."""
        return os.fstat(self._fd).st_ctime_ns

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` from `offset` on, fewer only at the end of the file."""
        nbytes = min(nbytes, self._source.size - offset)
        if nbytes <= 0:
            return b""
        found = os.pread(self._fd, nbytes, offset)
        while len(found) < nbytes:  # 2 GiB limit, network file systems
            more = os.pread(self._fd, nbytes - len(found), offset + len(found))
            if not more:
                break
            found += more
        return found

    def pieces(self, buffer: memoryview, offset: int, nbytes: int, lead: bytes = b"") -> Iterator[memoryview]:
        """Yield `nbytes` from `offset` on in views of `buffer`, each valid until the next.

        Raises:
            SourceChanged: something else than `lead` stands before them, or the file ends early.
        """
        found = bytearray(len(lead))
        piece = buffer[:nbytes]
        # Header and payload of a small file arrive in one system call.
        self._read([found, piece], offset - len(lead), len(lead) + len(piece))
        if found != lead:
            raise SourceChanged(f"{self._where}: {self._source.path} has another header now")
        end = offset + nbytes
        while len(piece):
            yield piece
            offset += len(piece)
            piece = buffer[: end - offset]
            self._read([piece], offset, len(piece))

    def _read(self, buffers: Sequence[bytearray | memoryview], position: int, nbytes: int) -> None:
        """Fill buffers, of `nbytes` in all."""
        if not nbytes or os.preadv(self._fd, buffers, position) == nbytes:
            return
        # A short read is rare (2 GiB limit, network file systems): go on by hand.
        for part in buffers:
            view = memoryview(part)
            while view:
                n = os.preadv(self._fd, [view], position)
                if n == 0:
                    raise SourceChanged(f"{self._where}: {self._source.path} ended at byte {position}")
                position += n
                view = view[n:]
