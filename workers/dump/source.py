"""Reading dump files: only regular files, only as large as planned, and only while they do not change."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import xxhash

from workers.dump import paths
from workers.errors import AccessDenied, SourceChanged
from workers.host.resources import throttle
from workers.model import SourceFile, bounded_ns

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # NONBLOCK: never hang on a FIFO

#: Errors of a file whose bytes the disk does not return: the device fails (EIO), or the file system finds
#: damage (EUCLEAN, EBADMSG). Other errors pass, such as a stale handle or too many open files.
DISK_ERRORS = frozenset([errno.EIO, errno.EUCLEAN, errno.EBADMSG])
#: Returns the digest by which it is known whether an envelope is what it was.
envelope_digest = xxhash.xxh3_64_intdigest


class OpenFile(AbstractContextManager["OpenFile"]):
    """One dump file, open for reading. A context manager."""

    def __init__(self, root: Path | str, source: SourceFile, where: str) -> None:
        """Open the file if it is still what the listing saw.

        Args:
            root: the dump.
            source: the file, as the listing saw it.
            where: the rank and the step, for error messages.

        Raises:
            SourceChanged: it vanished, or its size or time differ.
            AccessDenied: it may not be read.
            OSError: the disk failed.
        """
        self._source = source
        self._where = where
        # Text, because making a `Path` for each file costs as much as opening it.
        path = f"{root}/{paths.relative(source.path)}"
        try:
            self._fd = os.open(path, _FLAGS)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise SourceChanged(f"{where}: {source.path} is gone") from exc
        except PermissionError as exc:
            raise AccessDenied(f"{where}: {source.path}: permission denied") from exc
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise SourceChanged(f"{where}: {source.path} is now a symbolic link") from exc
            raise
        try:
            self.check_unchanged()
        except BaseException:
            os.close(self._fd)
            raise

    @staticmethod
    def read_at_once(
        root: Path | str,
        source: SourceFile,
        buffers: Sequence[bytearray | memoryview],
        position: int,
        nbytes: int,
    ) -> bool:
        """Fill buffers, of `nbytes` in total, from a dump file; return whether it is what the listing saw.

        In as few calls as possible, because a step has thousands of small files. False also if the file
        cannot be read, or not in one piece: an open file says what is wrong, or reads it piece by piece.
        """
        try:
            fd = os.open(f"{root}/{paths.relative(source.path)}", _FLAGS)
        except OSError:
            return False
        try:
            is_full = os.preadv(fd, buffers, position) == nbytes
            now = os.fstat(fd)  # afterwards: whoever writes to it meanwhile changes its time
        except OSError:
            return False
        finally:
            os.close(fd)
        throttle.pay()
        is_as_listed = now.st_size == source.size and now.st_mtime_ns == source.mtime_ns
        return is_full and is_as_listed and stat.S_ISREG(now.st_mode)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        throttle.pay()

    def check_unchanged(self) -> None:
        """Raise `SourceChanged` if the file is not what the listing saw any more."""
        now = os.fstat(self._fd)
        if not stat.S_ISREG(now.st_mode):
            raise SourceChanged(f"{self.name} is not a regular file any more")
        if now.st_size != self._source.size:
            sizes = f"{self._source.size} bytes planned, {now.st_size} now"
            raise SourceChanged(f"{self.name} changed while it was ingested ({sizes})")
        if bounded_ns(now.st_mtime_ns) != self._source.mtime_ns:
            raise SourceChanged(f"{self.name} changed while it was ingested (its size is the same)")

    @property
    def name(self) -> str:
        """Rank, step and path, for error messages."""
        return f"{self._where}: {self._source.path}"

    @property
    def changed_ns(self) -> int:
        """When its inode last changed. Writing and renaming set this time, and nobody can set it back."""
        return os.fstat(self._fd).st_ctime_ns

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` from `offset` on; fewer only at the end of the file."""
        nbytes = min(nbytes, self._source.size - offset)
        if nbytes <= 0:
            return b""
        content = os.pread(self._fd, nbytes, offset)
        while len(content) < nbytes:  # 2 GiB limit, network file systems
            more = os.pread(self._fd, nbytes - len(content), offset + len(content))
            if not more:
                break
            content += more
        return content

    def pieces(self, buffer: memoryview, offset: int, nbytes: int, lead: bytes = b"") -> Iterator[memoryview]:
        """Yield `nbytes` from `offset` on in views of `buffer`, each valid until the next.

        Raises:
            SourceChanged: the bytes before them are not `lead`, or the file ends early.
        """
        piece = self.first_piece(buffer, offset, nbytes, lead)
        end = offset + nbytes
        while len(piece):
            yield piece
            throttle.pay()
            offset += len(piece)
            piece = buffer[: end - offset]
            self._read([piece], offset, len(piece))

    def first_piece(self, buffer: memoryview, offset: int, nbytes: int, lead: bytes = b"") -> memoryview:
        """Return the first of `pieces`, which is all of a payload that fits into `buffer`; empty for none.

        Raises:
            SourceChanged: the bytes before it are not `lead`, or the file ends early.
        """
        lead_now = bytearray(len(lead))
        piece = buffer[:nbytes]
        # Header and payload of a small file arrive in one system call.
        self._read([lead_now, piece], offset - len(lead), len(lead) + len(piece))
        if lead_now != lead:
            raise SourceChanged(f"{self.name} has a different header now")
        return piece

    def envelope(self, offset: int, nbytes: int, expected: int) -> bytearray:
        """Return all bytes of the file but a payload of `nbytes` that begins at `offset`.

        Raises:
            SourceChanged: their digest is not the expected one, or the file ends early.
        """
        envelope = bytearray(self._source.size - nbytes)
        lead, tail = memoryview(envelope)[:offset], memoryview(envelope)[offset:]
        self._read([lead], 0, len(lead))
        self._read([tail], offset + nbytes, len(tail))
        if envelope_digest(envelope) != expected:
            raise SourceChanged(f"{self.name} has a different header now")
        return envelope

    def _read(self, buffers: Sequence[bytearray | memoryview], position: int, nbytes: int) -> None:
        if not nbytes or os.preadv(self._fd, buffers, position) == nbytes:
            return
        # A short read is rare (2 GiB limit, network file systems): read the rest step by step.
        for part in buffers:
            view = memoryview(part)
            while view:
                count = os.preadv(self._fd, [view], position)
                if count == 0:
                    raise SourceChanged(f"{self.name} ended at byte {position}")
                position += count
                view = view[count:]
