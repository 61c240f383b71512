"""Listing directories: only regular files, only inside the root, and everything unreadable is reported.

Listing the files of one rank and step, and whether an earlier listing may be used again.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from ingest.layouts.base import Listing, Place, Problem, Section
from workers.errors import AccessDenied
from workers.host.heartbeat import beat
from workers.model import MIB, SourceFile, StepKey, bounded_ns

#: How long a directory must have been quiet before its time proves that nothing was added. File systems
#: stamp with the time of their last tick.
_TICK_S = 2.0
#: How long a listing is trusted while the times of its directories do not change: a file that is written in
#: place leaves no trace in its directory.
TRUST_S = 60.0
#: What files are sorted by.
_path = attrgetter("path")


def list_places(
    root: Path,
    key: StepKey,
    places: Sequence[Place],
    *,
    without: Collection[str],
    rank_from: str,
    later_begun: bool,
    known: Listing | None,
) -> Listing:
    """List the files of the places of one rank and step.

    Args:
        root: the dump.
        key: rank and step.
        places: where their files are.
        without: the directories and files of all places of the dump: those of a place inside another one are
            not listed with the outer one.
        rank_from: where the rank comes from.
        later_begun: whether a later step has begun.
        known: an earlier listing, which is used again if its directories have not changed.
    """
    beat()
    listed_at = time.time()
    places = tuple(sorted(places, key=_path))
    if known is not None and _is_unchanged(root, known, places):
        return _without_beside(replace(known, later_begun=later_begun, rank_from=rank_from, places=places))
    walk = Walk(root)
    for place in places:
        if place.names is None:
            walk.add_tree(place.path, without=without)
        elif place.section is None:
            walk.add_named(place.directory, place.names)
        else:
            walk.add_section(f"{place.directory}/{place.names[0]}".lstrip("/"), place.section)
    # A file that is a place by its name may be in a directory that is one, too.
    files = walk.files if len(places) == 1 else {file.path: file for file in walk.files}.values()
    return Listing(
        key,
        tuple(sorted(files, key=_path)),
        walk.newest_change,
        later_begun,
        tuple(walk.directories),
        listed_at,
        tuple(walk.problems),
        layout="+".join(sorted({place.layout.name for place in places})),
        rank_from=rank_from,
        places=places,
    )


def aged(listings: Iterable[Listing], now: float) -> list[Listing]:
    """Return the listings that are too old to be trusted, by Unix time `now`, the oldest first."""
    old = [listing for listing in listings if not 0 <= now - listing.listed_at < TRUST_S]
    return sorted(old, key=lambda listing: listing.listed_at)


def merge(first: Listing, second: Listing) -> Listing:
    """Return two listings of one key as one; all but files and problems is that of the first."""
    return replace(
        first,
        files=tuple(sorted((*first.files, *second.files), key=_path)),
        newest_change=max(first.newest_change, second.newest_change),
        problems=(*first.problems, *second.problems),
    )


def files_by_place(listing: Listing) -> dict[str, list[SourceFile]]:
    """Return the files of each place, by its path. A file in nested places belongs to the inner one."""
    if len(listing.places) == 1 and listing.key.step is not None:  # run files lie beside their places
        return {listing.places[0].path: list(listing.files)}
    files: dict[str, list[SourceFile]] = {place.path: [] for place in listing.places}
    named = _named_files(listing)
    homes: dict[str, list[SourceFile]] = {}
    """By directory, the files of the place that it is in; most files share their directory with thousands."""
    for file in listing.files:
        if file.path in named:
            files[named[file.path]].append(file)
            continue
        directory = file.path.rpartition("/")[0]
        if directory not in homes:
            place = next((parent for parent in parents(file.path) if parent in files), None)
            homes[directory] = [] if place is None else files[place]
        homes[directory].append(file)
    return files


def _named_files(listing: Listing) -> dict[str, str]:
    return {
        f"{place.directory}/{name}".lstrip("/"): place.path
        for place in listing.places
        for name in place.names or ()
    }


def _is_unchanged(root: Path, known: Listing, places: Sequence[Place]) -> bool:
    # Both the files and the directories had been quiet for a while when they were listed.
    quiet_since, of_files = known.listed_at - _TICK_S, _of_files(places)
    if of_files and (_of_files(known.places) != of_files or known.newest_change > quiet_since):
        return False
    directories = {directory for directory, _ in known.directories}
    if not directories.issuperset(place.path for place in places if place.names is None):
        return False
    return bool(directories or of_files) and _have_times(root, known.directories, quiet_since)


def _of_files(places: Iterable[Place]) -> list[Place]:
    return [place for place in places if place.names is not None]


def _have_times(root: Path, directories: Iterable[tuple[str, int]], quiet_since: float) -> bool:
    try:
        return all(
            mtime_ns / 1e9 <= quiet_since and os.stat(f"{root}/{directory}").st_mtime_ns == mtime_ns  # noqa: PTH116 (twice as fast)
            for directory, mtime_ns in directories
        )
    except OSError:
        return False


def _without_beside(listing: Listing) -> Listing:
    """Return a listing of places without the files outside of them, which each scan adds again."""
    if listing.key.step is not None:
        return listing
    places = {place.path for place in listing.places}
    named = _named_files(listing)

    def is_in_place(path: str) -> bool:
        return path in places or path in named or any(parent in places for parent in parents(path))

    return replace(
        listing,
        files=tuple(file for file in listing.files if is_in_place(file.path)),
        problems=tuple(problem for problem in listing.problems if is_in_place(problem.path)),
    )


#: The largest configuration or name table that is read, in bytes.
MAX_SMALL_FILE_NBYTES = 64 * MIB
#: Bytes of a file that are read to find out who wrote it.
_HEAD_NBYTES = 512


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file. Follows no link, and does not wait for the writer of a FIFO.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    return open(path, "rb", opener=_open)


def _open(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd


def read_small(path: Path) -> bytes | None:
    """Return the content of a small regular file; None if it cannot be read, or is too large to be one."""
    with suppress(OSError), open_regular(path) as file:
        if os.fstat(file.fileno()).st_size <= MAX_SMALL_FILE_NBYTES:
            return file.read(MAX_SMALL_FILE_NBYTES)
    return None


def begins_like(path: str, content: re.Pattern[bytes]) -> bool:
    """Return whether the first bytes of a regular file have a match. Follows no link."""
    with suppress(OSError), open_regular(path) as file:
        return content.search(file.read(_HEAD_NBYTES)) is not None
    return False


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
                return sorted(entries, key=attrgetter("name"))
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
        version = hash((status.st_ctime_ns, status.st_ino))
        mtime_ns, is_writable = bounded_ns(status.st_mtime_ns), bool(status.st_mode & stat.S_IWUSR)
        self.files.append(SourceFile(path, status.st_size, mtime_ns, is_writable, version))
        # ctime too: tools that copy restore the modification time, but cannot set this one.
        self.newest_change = max(self.newest_change, status.st_mtime, status.st_ctime)


def parents(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first, down to the root, which is ""."""
    while path:
        path = path.rpartition("/")[0]
        yield path
