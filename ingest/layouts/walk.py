"""Listing directories: regular files only, never outside of the root, nothing unreadable unsaid."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from ingest.layouts.base import Problem
from workers.errors import AccessDenied
from workers.model import MIB, SourceFile

#: The largest configuration or name table that is read, in bytes.
_MAX_SMALL_FILE_NBYTES = 64 * MIB


def read_small(path: Path) -> bytes | None:
    """Return the content of a regular file; None where there is none, or it is larger than it can be.

    Follows no link, and does not wait at a FIFO.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_SMALL_FILE_NBYTES:
            return None
        with open(fd, "rb", closefd=False) as file:
            return file.read(_MAX_SMALL_FILE_NBYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


@dataclass(slots=True)
class Walk:
    """Collects what is found below one dump root."""

    root: Path
    files: list[SourceFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    directories: list[tuple[str, int]] = field(default_factory=list)
    newest_change: float = 0.0

    def entries(self, directory: str) -> list[os.DirEntry[str]]:
        """Return the entries of a directory, sorted by name; a problem and nothing if it cannot be read."""
        try:
            with os.scandir(f"{self.root}/{directory}") as found:
                return sorted(found, key=lambda entry: entry.name)
        except PermissionError:
            self.problems.append(
                Problem(directory or ".", "permission denied", AccessDenied.hint, denied=True)
            )
        except FileNotFoundError:
            pass  # removed or renamed since its parent was listed; the next scan will see
        except OSError as exc:
            self.problems.append(Problem(directory or ".", f"cannot be listed: {exc.strerror}"))
        return []

    def take_tree(self, directory: str, without: Collection[str] = ()) -> None:
        """Take every file of a directory and of all directories below it, but for those in `without`."""
        ahead = [directory]  # no recursion: a dump may be nested more deeply than Python's stack
        while ahead:
            directory = ahead.pop()
            try:
                # Before it is listed: whatever comes later gives it another time.
                mtime_ns = Path(self.root, directory).stat().st_mtime_ns
            except OSError:
                mtime_ns = -1
            self.directories.append((directory, mtime_ns))
            for entry in self.entries(directory):
                path = f"{directory}/{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    self.take(entry, path)
                elif path not in without:
                    ahead.append(path)

    def take(self, entry: os.DirEntry[str], path: str) -> None:
        """Take one directory entry that is no directory."""
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError as exc:
            if not isinstance(exc, FileNotFoundError):
                self.problems.append(Problem(path, f"cannot be examined: {exc.strerror}"))
            return
        if not stat.S_ISREG(found.st_mode):
            kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
            self.problems.append(
                Problem(path, f"is {kind}; it is not followed", "Copy its target into the dump.")
            )
            return
        self.files.append(
            SourceFile(path, found.st_size, found.st_mtime_ns, bool(found.st_mode & stat.S_IWUSR))
        )
        # ctime too: tools that copy restore the modification time, but cannot set this one.
        self.newest_change = max(self.newest_change, found.st_mtime, found.st_ctime)
