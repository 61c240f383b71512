"""Export the original files of a step into a directory, byte for byte, without following any symbolic link.

Whoever can write to the directory could otherwise have a file written anywhere, in the name of the user. Each
directory below it is opened relative to the one above, and files are opened relative to their directory, so
that a link that appears while files are written is not followed either.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeAlias

from ingest.reader.output_file import translated, unwritable
from ingest.reader.require import refuse_in_store
from workers.dump import paths
from workers.errors import DamagedStore, DumpIngestError, UsageError
from workers.model import MIB, StepKey
from workers.store.model import RowKind
from workers.store.step import StoredStep, begin_of, part

_PIECE_NBYTES = 16 * MIB
#: Names from the target directory to a directory below it.
Parts: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """One file that was written, or the reason why it was not."""

    key: StepKey
    source: str
    path: Path
    nbytes: int
    problem: str = ""


def export(
    step: StoredStep, directory: Path, rows: Iterable[int] | None = None, *, overwrite: bool = False
) -> Iterator[Exported]:
    """Write source files of a step below `directory`, under the paths that they had in the dump.

    A file appears under its name only after all its digests were checked. Quarantined files come back as they
    were; files that could not be read when they were ingested are reported.

    Args:
        step: the step.
        directory: the target directory; created if it is missing.
        rows: rows of the index; the whole file of each of them is written. All rows if None.
        overwrite: whether to replace existing files.

    Raises:
        UsageError: a file exists already, `directory` cannot be written, or it is or holds a symbolic link on
            the way to a file: no link is followed.
    """
    table = step.tables
    with TargetDirectory(directory) as target:
        files = _files(step, directory, target, range(len(table.labels)) if rows is None else rows)
        for file in files:  # before anything is written
            if file.exists() and not overwrite:
                raise UsageError(
                    f"{file.path} exists", hint="Export into an empty directory, or pass --overwrite."
                )
        by_row: dict[int, _File] = {}
        for file in files:
            if problem := _why_unavailable(step, file):
                yield Exported(step.key, file.source, file.path, 0, problem)
            else:
                by_row.update(dict.fromkeys(file.rows, file))
        try:
            yield from _write(step, by_row)
        finally:
            for file in files:
                file.discard()


def _write(step: StoredStep, by_row: dict[int, _File]) -> Iterator[Exported]:
    for row, pieces in step.payloads(by_row, _PIECE_NBYTES):
        file = by_row[row]
        if not file.problem:
            file.write(step, row, pieces)
        file.rows.remove(row)
        if not file.rows:
            file.close()
            nbytes = 0 if file.problem else file.nbytes
            yield Exported(step.key, file.source, file.path, nbytes, file.problem)


def _files(step: StoredStep, directory: Path, target: TargetDirectory, rows: Iterable[int]) -> list[_File]:
    table = step.tables
    sources = table.label("source")
    # Rows of statistics name a file, too, but do not hold a part of it.
    kinds = table.label("kind")
    wanted = {str(sources[row]) for row in rows}
    parts: dict[str, set[int]] = {}
    for row, source in enumerate(map(str, sources)):
        if source in wanted and kinds[row] != RowKind.STATISTICS.value:
            parts.setdefault(source, set()).add(row)
    sizes = table.number("source_size")
    files = []
    for source, members in parts.items():
        path = paths.inside(directory, paths.from_text(source))
        above = path.relative_to(directory).parts[:-1]
        files.append(_File(source, path, above, target, int(sizes[min(members)]), members))
    return files


@dataclass(slots=True)
class _File:
    """A file that is put together from the rows that hold its parts, in any order."""

    source: str
    path: Path
    parts: Parts
    """The names on the way to it, below the target directory."""
    target: TargetDirectory
    nbytes: int
    rows: set[int]
    """The rows that are still to be written."""
    problem: str = ""
    _temporary: str = ""
    """Its name until it is complete; empty if nothing was written yet."""

    def exists(self) -> bool:
        return self.target.check(self.parts, self.path.name)

    def write(self, step: StoredStep, row: int, pieces: Iterator[bytes]) -> None:
        """Write the part of one row; set `problem` if it is damaged."""
        self._temporary = self._temporary or f".{uuid.uuid4().hex}.tmp"
        try:
            with translated(self.path), self.target.open(self.parts, self._temporary) as file:
                file.seek(begin_of(step, row))
                file.writelines(part(step, row, pieces))
        except DamagedStore as exc:
            self.problem = exc.message

    def close(self) -> None:
        """Rename the temporary file to its final name, unless the file has a problem."""
        if self.problem:
            return
        written = self.target.nbytes(self.parts, self._temporary)
        if written != self.nbytes:
            self.problem = f"{written} bytes were put together instead of {self.nbytes}"
            return
        self.target.rename(self.parts, self._temporary, self.path.name)
        self._temporary = ""

    def discard(self) -> None:
        """Remove what was written, unless the file is complete."""
        if self._temporary:
            self.target.remove(self.parts, self._temporary)


def _why_unavailable(step: StoredStep, file: _File) -> str:
    if not all(map(step.has_payload, file.rows)):
        return str(step.commit.without_tensors)
    unread = [row for row in file.rows if step.tables.number("offset")[row] < 0]
    return f"never read: {step.tables.label('problem')[unread[0]]}" if unread else ""


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
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(name, dir_fd=self._directory(parts, create=False))

    def _directory(self, parts: Parts, *, create: bool) -> int:
        if self._opened is not None and self._opened[0] == parts:
            return self._opened[1]
        self._close()
        if create:
            self._path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, _DIRECTORY)
        for name in parts:
            above = descriptor
            try:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=above)
                descriptor = os.open(name, _DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
        self._opened = parts, descriptor
        return descriptor

    def _close(self) -> None:
        if self._opened is not None:
            os.close(self._opened[1])
            self._opened = None

    def _complaint(self, parts: Parts, name: str, exc: OSError) -> DumpIngestError:
        path = self._path
        if exc.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
            for each in ("", *parts, name):
                path = path / each
                if path.is_symlink():
                    return _link(path)
        return unwritable(self._path.joinpath(*parts, name), exc)


def _link(path: Path) -> UsageError:
    return UsageError(f"{path} is a symbolic link, which export does not follow", hint=_LINK_HINT)
