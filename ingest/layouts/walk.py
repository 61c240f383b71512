"""Listing directories: only regular files, only inside the root, and everything unreadable is reported."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ingest.heartbeat import beat
from ingest.layouts.base import Problem, Section
from workers.errors import AccessDenied
from workers.model import MIB, SourceFile, bounded_ns

#: The largest configuration or name table that is read, in bytes.
MAX_SMALL_FILE_NBYTES = 64 * MIB
#: Bytes of a file that are read to find out who wrote it.
_HEAD_NBYTES = 512


def read_small(path: Path) -> bytes | None:
    """Return the content of a small regular file; None if it cannot be read, or is too large to be one.

    Follows no link, and does not wait for the writer of a FIFO.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SMALL_FILE_NBYTES:
            return None
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_SMALL_FILE_NBYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


def begins_like(path: str, content: re.Pattern[bytes]) -> bool:
    """Return whether the first bytes of a regular file have a match. Follows no link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        return is_file and content.search(os.pread(fd, _HEAD_NBYTES, 0)) is not None
    except OSError:
        return False
    finally:
        os.close(fd)


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory, and not a link to one; False if that cannot be found out now.

    Some file systems (NFS) do not say it when they list a directory, so the entry is examined. If that fails,
    it is reported when the entry is added as a file.
    """
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


class _Named:
    """A file that is known by its path, in the place of an entry of its directory."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        return os.stat(self._path, follow_symlinks=follow_symlinks)  # noqa: PTH116 (twice as fast)


@dataclass(slots=True)
class Walk:
    """Collects the files below one dump root."""

    root: Path
    files: list[SourceFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    directories: list[tuple[str, int]] = field(default_factory=list)
    """Path and modification time of each directory that was added as a tree; -1 for an unknown time."""
    newest_change: float = 0.0
    """Unix time of the newest change of content or name; 0 without files."""

    def entries(self, directory: str) -> list[os.DirEntry[str]]:
        """Return the entries of a directory, sorted by name; none, and a problem, if it cannot be listed."""
        beat()
        try:
            with os.scandir(f"{self.root}/{directory}") as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except PermissionError:
            self.problems.append(
                Problem(directory or ".", "permission denied", AccessDenied.hint, denied=True)
            )
        except FileNotFoundError:
            pass  # removed or renamed since its parent was listed; the next scan will see that
        except OSError as exc:
            self.problems.append(Problem(directory or ".", f"cannot be listed: {exc.strerror}"))
        return []

    def add_tree(self, directory: str, without: Collection[str] = ()) -> None:
        """Add every file of a directory and of all directories below it, except for paths in `without`."""
        pending = [directory]  # no recursion: a dump may be nested more deeply than Python's stack
        while pending:
            directory = pending.pop()
            try:
                # Before it is listed: whatever is added later changes the time.
                mtime_ns = Path(self.root, directory).stat().st_mtime_ns
            except OSError:
                mtime_ns = -1
            self.directories.append((directory, mtime_ns))
            for entry in self.entries(directory):
                path = f"{directory}/{entry.name}"
                if path in without:
                    continue
                if is_directory(entry):
                    pending.append(path)
                else:
                    self.add_file(entry, path)

    def add_named(self, directory: str, names: Iterable[str]) -> None:
        """Add files of a directory."""
        beat()
        prefix = f"{directory}/" if directory else ""
        for name in names:
            self.add_file(_Named(f"{self.root}/{prefix}{name}"), f"{prefix}{name}")

    def add_section(self, path: str, section: Section) -> None:
        """Add the lines of a step in a log, as a file of their size and time."""
        self.files.append(SourceFile(path, section.nbytes, section.changed_ns))
        if section.is_last:
            try:
                self.newest_change = max(self.newest_change, Path(self.root, path).stat().st_mtime)
            except OSError:
                return  # removed since; the next scan will see that

    def add_file(self, entry: os.DirEntry[str] | _Named, path: str) -> None:
        """Add a directory entry that is not a directory."""
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as exc:
            if not isinstance(exc, FileNotFoundError):
                self.problems.append(Problem(path, f"cannot be examined: {exc.strerror}"))
            return
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISLNK(status.st_mode):
                problem = Problem(
                    path, "is a symbolic link; it is left out", "Copy its target into the dump."
                )
            else:
                problem = Problem(path, "is not a regular file; it is left out")
            self.problems.append(problem)
            return
        self.files.append(
            SourceFile(
                path,
                status.st_size,
                bounded_ns(status.st_mtime_ns),
                bool(status.st_mode & stat.S_IWUSR),
                version=hash((status.st_ctime_ns, status.st_ino)),
            )
        )
        # ctime too: tools that copy restore the modification time, but cannot set this one.
        self.newest_change = max(self.newest_change, status.st_mtime, status.st_ctime)
