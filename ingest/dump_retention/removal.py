"""Deleting source files: only those that were read back, only as they were then, and never through a link.

Every directory is opened from the root of the dump on, name by name, without following links; files are
examined and unlinked relative to it. A directory that is replaced by a link to elsewhere is not followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from ingest.layouts.base import LayoutPlace, Pattern
from workers.dump import paths
from workers.errors import UsageError
from workers.model import SourceFile, bounded_ns

_STEP_FIELDS = frozenset(["step", "iteration", "previous_step"])


def step_directories(places: Iterable[LayoutPlace]) -> Iterator[str]:
    """Yield the directories that are a step's by name, if its places lie below them: `step8/rank0`."""
    for located in places:
        names = located.place.path.split("/")
        pattern = next((pattern for pattern in located.layout.patterns if _fits(pattern, names)), None)
        if pattern is not None:
            first = next(
                (level for level, name in enumerate(names, 1) if _names_step(pattern, level - 1, name)),
                len(names),
            )
            yield from ("/".join(names[:end]) for end in range(first, len(names)))


def _fits(pattern: Pattern, names: list[str]) -> bool:
    """Return whether a pattern matches a path from its first level to its last."""
    return len(names) == len(pattern.levels) and all(
        pattern.match(level, name) is not None for level, name in enumerate(names)
    )


def _names_step(pattern: Pattern, level: int, name: str) -> bool:
    """Return whether the step is part of the name of a directory."""
    fields = pattern.match(level, name)
    return fields is not None and not _STEP_FIELDS.isdisjoint(fields)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors that mean: a link or a file is where a directory was, or nothing is.
_SWAPPED = frozenset([errno.ELOOP, errno.ENOTDIR, errno.ENOENT])


@dataclass(frozen=True, slots=True)
class Proven:
    """A file of which the store has every byte."""

    file: SourceFile
    changed_ns: int
    """When its inode had changed last (ctime) when it was compared."""


@dataclass(slots=True)
class Removed:
    """What came of deleting the files of one step."""

    files: int = 0
    nbytes: int = 0
    changed: list[str] = field(default_factory=list)
    """Files and directories that were not as they had been, and stay; the first `_NAMED` of them."""
    denied: str = ""
    """Why the system refused; nothing further was tried after that."""
    stopped: bool = False
    """Whether it had to stop before the last file."""
    links: set[tuple[int, int]] = field(default_factory=set)
    """Device and inode of files that have other names, of which one was unlinked."""


#: How many paths of changed files are kept.
_NAMED = 20


def remove(
    root: Path,
    proven: Sequence[Proven],
    *,
    listed: Collection[str],
    directories: Iterable[str],
    stop: Event,
    dry_run: bool = False,
) -> Removed:
    """Unlink files of one step, then remove its empty directories. It may be killed at any time.

    Args:
        root: the dump; never removed itself.
        proven: the files, with paths relative to the dump.
        listed: every path of the step that was known when the files were read back. If the step has another
            file by now, nothing is deleted: a file that came late is ingested together with all others.
        directories: the directories of the step, relative to the dump.
        stop: ends it before the next file.
        dry_run: do everything but change the dump.
    """
    removed = Removed()
    by_directory: dict[str, list[Proven]] = {}
    for member in proven:
        by_directory.setdefault(paths.relative(member.file.path).rpartition("/")[0], []).append(member)
    try:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        return Removed(denied=f"{root}: {exc.strerror}")
    try:
        if _record_others(root_fd, by_directory, listed, removed):
            return removed
        for directory, members in by_directory.items():
            _unlink_in(root_fd, directory, members, removed, stop, dry_run=dry_run)
            if removed.denied or removed.stopped:
                return removed
        if not dry_run:
            _remove_directories(root_fd, directories)
    finally:
        os.close(root_fd)
    return removed


def _record_others(
    root_fd: int, directories: Iterable[str], listed: Collection[str], removed: Removed
) -> bool:
    """Record the files of the step that were not listed as changed; return whether there are any."""
    for directory in directories:
        try:
            with _opened(root_fd, directory) as fd, os.scandir(fd) as entries:
                names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # what is wrong with it shows when something is to be deleted in it
        present = {f"{directory}/{name}" if directory else name for name in names}
        removed.changed += sorted(present.difference(listed))[:_NAMED]
        if removed.changed:
            return True
    return False


def _unlink_in(
    root_fd: int, directory: str, members: Sequence[Proven], removed: Removed, stop: Event, *, dry_run: bool
) -> None:
    try:
        with _opened(root_fd, directory) as fd:
            for member in members:
                if stop.is_set():
                    removed.stopped = True
                    return
                _unlink(fd, member, removed, dry_run=dry_run)
    except OSError as exc:
        if exc.errno in _SWAPPED:
            removed.changed.append(directory)
        else:
            removed.denied = f"{directory}: {exc.strerror}"


def _unlink(fd: int, member: Proven, removed: Removed, *, dry_run: bool) -> None:
    name = member.file.path.rpartition("/")[2]
    try:
        now = os.lstat(name, dir_fd=fd)
    except FileNotFoundError:
        return  # somebody else was quicker
    if not is_as_proven(now, member, removed.links):
        if len(removed.changed) < _NAMED:
            removed.changed.append(member.file.path)
        return
    if not dry_run:
        os.unlink(name, dir_fd=fd)
        if now.st_nlink > 1:
            removed.links.add((now.st_dev, now.st_ino))
    removed.files += 1
    removed.nbytes += member.file.size


def is_as_proven(now: os.stat_result, member: Proven, unlinked: Collection[tuple[int, int]]) -> bool:
    """Return whether a file is still the one of which the store has every byte.

    Args:
        now: the present state of the file; a link is not followed.
        member: the file as it was when it was compared.
        unlinked: device and inode of files of which another name was unlinked since: that sets ctime, too.
    """
    return (
        stat.S_ISREG(now.st_mode)
        and (now.st_size, bounded_ns(now.st_mtime_ns)) == (member.file.size, member.file.mtime_ns)
        and (now.st_ctime_ns == member.changed_ns or (now.st_dev, now.st_ino) in unlinked)
    )


def _remove_directories(root_fd: int, directories: Iterable[str]) -> None:
    """Remove directories that are empty, the deepest first. One that is not empty, or is in use, stays."""
    for directory in sorted(set(directories) - {""}, key=lambda path: (-path.count("/"), path)):
        above, _, name = paths.relative(directory).rpartition("/")
        try:
            with _opened(root_fd, above) as fd:
                os.rmdir(name, dir_fd=fd)
        except OSError:
            continue


@contextmanager
def _opened(root_fd: int, directory: str) -> Iterator[int]:
    """Open a directory below the root, without following any link on the way."""
    fd = os.dup(root_fd)
    try:
        for name in directory.split("/") if directory else ():
            below = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def not_writable(root: Path, directories: Iterable[str]) -> str:
    """Return the first of these directories in which this process may not delete; "" if it may in all."""
    for directory in directories:
        path = f"{root}/{directory}"
        if os.path.isdir(path) and not os.access(path, os.W_OK | os.X_OK, effective_ids=True):  # noqa: PTH112
            return directory
    return ""


def cannot_delete(root: Path, directory: str) -> UsageError:
    """Return the error for a dump in which this process is to delete files, and may not."""
    path = root / directory
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        why = "is on a file system that is mounted read-only here"
    else:
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        why = f"belongs to user {status.st_uid} (mode {mode:04o}), and this is user {os.geteuid()}"
    return UsageError(
        f"cannot delete in the dump: {path} {why}",
        hint="Mount it for writing, and run as the user who dumps (docs/retention.md); or keep dumps.",
    )
