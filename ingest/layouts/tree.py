"""A tree of dumps, walked once for all layouts.

All places of one rank and step, of whatever layout, make one listing. Files outside of places belong to the
run files of a rank.

A log of many steps grows while a job runs. It is one of the run files of its rank, as a whole. The lines of
each step are a place of that step, which does not change any more when the log goes on: so a step is
converted once. A log is read from where the look before ended.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import xxhash

from ingest.layouts.base import (
    Beginning,
    Defer,
    Description,
    DumpScan,
    Layout,
    Listing,
    PathRank,
    Place,
    Problem,
    Section,
    series_of,
    step_of,
)
from ingest.layouts.places import (
    Discovery,
    Owner,
    PlaceSearch,
    Ranks,
    all_parents,
    find_clashes,
    is_rank_table,
)
from ingest.layouts.walk import (
    MAX_SMALL_FILE_NBYTES,
    Walk,
    aged,
    files_by_place,
    list_places,
    merge,
    open_regular,
    parents,
    read_small,
)
from workers.host.heartbeat import beat
from workers.model import MIB, SourceFile, StepKey

_PIECE_NBYTES = 4 * MIB
#: The most runs of lines of a log: a million steps one after the other.
_MAX_RUNS = 1_000_000
#: A line is at most this long; what is longer is passed over.
_MAX_LINE_NBYTES = 64 * 1024
#: This many bytes before the end of the last look must be the same at the next one.
_SEAM_NBYTES = 256
_NS = 1_000_000
_MS = 1_000_000_000 // _NS
#: The last millisecond of which 64 bits hold every nanosecond, in 2262.
_LAST_MS = 2**63 // _NS - 1


@dataclass(slots=True)
class _StepLines:
    ranges: list[tuple[int, int]] = field(default_factory=list)
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)
    time: bytes = b""

    def add(self, begin: int, lines: memoryview, time: bytes) -> None:
        end = begin + len(lines)
        if self.ranges and self.ranges[-1][1] == begin:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((begin, end))
        self.digest.update(lines)
        self.time = time or self.time

    def section(self) -> Section:
        return Section(tuple(self.ranges), _time_ns(self.time) + self.digest.intdigest() % _NS)


@dataclass(slots=True)
class _Read:
    inode: int = -1
    mtime_ns: int = -1
    end: int = 0
    """The byte after the last whole line."""
    seam: bytes = b""
    """The bytes before that."""
    steps: dict[int, _StepLines] = field(default_factory=dict)
    last: bytes = b""
    """The step of the last line, as it is written; empty before the first."""
    runs: int = 0

    def continues(self, fd: int, status: os.stat_result) -> bool:
        """Return whether a log is still this one, with nothing changed but its end."""
        if status.st_ino != self.inode or status.st_size < self.end:
            return False
        if status.st_size == self.end:
            return status.st_mtime_ns == self.mtime_ns
        return os.pread(fd, len(self.seam), self.end - len(self.seam)) == self.seam


class LogSections:
    """The sections of one log, which may grow.

    Args:
        step_of_line: see `Layout.step_of_line`.
    """

    def __init__(self, step_of_line: re.Pattern[bytes]) -> None:
        self._expression = step_of_line
        self._read = _Read()

    @property
    def is_whole(self) -> bool:
        """Whether no lines were left out because there are too many runs of them."""
        return self._read.runs < _MAX_RUNS

    def update(self, path: Path) -> dict[int, Section]:
        """Read what has been added to a log; return the section of each step. Empty if it cannot be read.

        Takes memory in proportion to the number of steps, and a few MiB.
        """
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                if not self._read.continues(file.fileno(), status):
                    self._read = _Read()
                self._read.inode, self._read.mtime_ns = status.st_ino, status.st_mtime_ns
                self._read_to(file.fileno(), status.st_size)
        except OSError:
            return {}
        sections = {step: lines.section() for step, lines in self._read.steps.items()}
        if self._read.last:
            last = int(self._read.last)
            sections[last] = replace(sections[last], is_last=True)
        return sections

    def _read_to(self, fd: int, size: int) -> None:
        read = self._read
        while read.end < size and self.is_whole:
            beat()
            piece = os.pread(fd, min(_PIECE_NBYTES, size - read.end), read.end)
            whole = piece.rfind(b"\n") + 1
            if not whole:
                if len(piece) < _MAX_LINE_NBYTES:
                    return  # the rest of a line is still to come
                whole = len(piece)
            self._add(piece[:whole])
            read.seam = (read.seam + piece[max(whole - _SEAM_NBYTES, 0) : whole])[-_SEAM_NBYTES:]
            read.end += whole

    def _add(self, piece: bytes) -> None:
        read = self._read
        for text, begin, end, last_time in runs(piece, self._expression, read.last):
            lines = read.steps.setdefault(int(text), _StepLines())
            lines.add(read.end + begin, memoryview(piece)[begin:end], last_time)
            read.last = text
            read.runs += 1


def runs(
    piece: bytes, expression: re.Pattern[bytes], before: bytes = b""
) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yield the step, as it is written, begin, end and last time stamp of each run of lines of one step.

    Lines that tell no step belong to the step of the line before; their time stamp is empty.

    Args:
        piece: whole lines.
        expression: see `Layout.step_of_line`.
        before: the step of the line before the piece, as it is written; empty for the first line.
    """
    begin, text, time = 0, before, b""
    for match in expression.finditer(piece):
        if match["step"] != text:
            if text and match.start() > begin:
                yield text, begin, match.start(), time
            begin, text, time = match.start(), match["step"], b""
        time = match["time"]
    if text and begin < len(piece):
        yield text, begin, len(piece), time


def _time_ns(time: bytes) -> int:
    """Return a time stamp in nanoseconds, as if it were UTC: the log does not tell the zone."""
    try:
        parsed = datetime.strptime(time.decode(), "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return min(max(int(parsed.timestamp() * _MS), 0), _LAST_MS) * _NS


class SectionedLogs:
    """The logs of a dump, each read only once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._logs: dict[str, LogSections] = {}

    def expand(self, places: list[Place]) -> tuple[list[Place], list[Problem]]:
        """Return places, with each log of many steps replaced by a place for each of its steps.

        Args:
            places: those of a scan.

        Returns:
            The places, and what is wrong with logs.
        """
        expanded: list[Place] = []
        problems: list[Problem] = []
        logs, self._logs = self._logs, {}
        for place in places:
            if place.layout.step_of_line is None:
                expanded.append(place)
                continue
            for name in place.names or ():
                path = f"{place.directory}/{name}".lstrip("/")
                log = self._logs[path] = logs.get(path) or LogSections(place.layout.step_of_line)
                sections = log.update(self._root / path)
                expanded += [_of_step(place, name, step, section) for step, section in sections.items()]
                if not log.is_whole:
                    problems.append(
                        Problem(path, f"goes back and forth between steps more than {_MAX_RUNS} times")
                    )
        return expanded, problems


def _of_step(place: Place, name: str, step: int, section: Section) -> Place:
    fields = {**place.fields, "step": str(step)}
    path = f"{place.directory}/{name},step={step}"
    return replace(place, path=path, fields=fields, names=(name,), section=section)


def read_section(path: Path, section: Section, limit: int) -> bytes | None:
    """Return the lines of a section; None if they cannot be read, or are more than `limit` bytes."""
    if section.nbytes > limit:
        return None
    with suppress(OSError), open_regular(path) as file:
        return b"".join(os.pread(file.fileno(), end - begin, begin) for begin, end in section.ranges)
    return None


#: How long a look goes on with listing again what is old, in seconds; one step at least.
_AGED_S = 0.1
#: Files that the ranks of a step have at most to be listed together where only the beginning is listed.
_RANKS_FILES = 50_000


class DumpTree:
    """One dump directory, in any mixture of layouts.

    Nothing is read before `scan`.

    Args:
        root: the directory from which the patterns are matched.
        layouts: the layouts that may be found.
        below: only this directory, relative to `root`, is scanned; "" for all.
        rank_map: ranks by device id, if the user gives them.
    """

    def __init__(
        self,
        root: Path,
        layouts: Sequence[Layout],
        *,
        below: str = "",
        rank_map: Mapping[int, int] | None = None,
    ) -> None:
        self.root = root
        self._layouts = layouts
        self._below = below
        self._rank_map = dict(rank_map or {})
        self._logs = SectionedLogs(root)

    def scan(
        self,
        known: Mapping[StepKey, Listing],
        defer: Defer = lambda _: (),
        beginning: Beginning | None = None,
    ) -> DumpScan:
        """List every step now; see `Dump.scan`."""
        discovery = PlaceSearch(self.root, self._layouts, self._below).run()
        discovery.places, of_logs = self._logs.expand(discovery.places)
        ranks = self._ranks(discovery)
        steps = _by_step(discovery.places, ranks)
        # All names come before any file: so what is listed of a step includes everything that existed when a
        # later step was seen.
        overtaken = self._overtaken(steps)
        deferred = set(defer({*steps, *_run_keys(discovery, ranks)})) - known.keys()
        unlisted = {key for key in steps if key in deferred and key.step is not None}
        to_list = [key for key in steps if key not in unlisted]
        if beginning is not None:
            to_list.sort(key=lambda key: key.order, reverse=beginning.newest_first)
        of_places = _directories_and_files(discovery.places)

        def listed(key: StepKey, known_listing: Listing | None) -> Listing:
            places = steps[key]
            return list_places(
                self.root,
                key,
                places,
                without=of_places,
                rank_from=ranks.sources_of(places),
                later_begun=key.step is not None and overtaken.issuperset(place.path for place in places),
                known=known_listing,
            )

        listings: dict[StepKey, Listing] = {}
        files_left, begun = sys.maxsize if beginning is None else beginning.files, None
        for key in to_list:
            # A step is listed on all ranks, unless they have very many files: they may share tensors.
            is_enough = files_left <= 0 and (key.step != begun or files_left <= -_RANKS_FILES)
            if is_enough and key.step is not None and key not in known:
                unlisted.add(key)
            else:
                listings[key] = listed(key, known.get(key))
                files_left, begun = files_left - len(listings[key].files), key.step
        until = time.monotonic() + _AGED_S
        for aged_listing in aged(listings.values(), time.time()):
            listings[aged_listing.key] = listed(aged_listing.key, None)
            if time.monotonic() >= until:
                break
        clashes = find_clashes(discovery.places, ranks)
        for key, listing in listings.items():
            if key.rank in clashes:
                problems = dict.fromkeys((*listing.problems, *clashes[key.rank]))
                listings[key] = replace(listing, problems=tuple(problems))
        run_listings = _run_listings(discovery, ranks, steps)
        _merge_into(listings, run_listings.values())
        return DumpScan(
            tuple(listings[key] for key in sorted(listings, key=lambda key: key.order)),
            (*discovery.unowned.problems, *ranks.problems, *of_logs),
            self._expected_steps(run_listings.values()),
            frozenset(unlisted),
            ranks.expected,
        )

    def describe(self, listing: Listing) -> Description:
        """Describe the files of a step by their names and small files; see `Dump.describe`."""
        files = files_by_place(listing)
        return Description.joined(self._described(place, files[place.path]) for place in listing.places)

    def _described(self, place: Place, files: Sequence[SourceFile]) -> Description:
        if place.section is None:
            return place.layout.describe(place, files, self._read)
        described = place.layout.describe(place, files, partial(self._read, section=place.section))
        return replace(described, sections=frozenset(file.path for file in files))

    def _read(self, path: str, section: Section | None = None) -> bytes | None:
        if section is not None:
            return read_section(self.root / path, section, MAX_SMALL_FILE_NBYTES)
        return read_small(self.root / path)

    def _ranks(self, discovery: Discovery) -> Ranks:
        files = (file.path for walk in discovery.outside.values() for file in walk.files)
        tables = [self._read(path) for path in files if is_rank_table(path)]
        places = discovery.places
        if self._below and any(rank is not None and rank.kind == "mesh" for rank in _path_ranks(places)):
            # These are counted over the whole dump, whichever part of it is wanted.
            places = PlaceSearch(self.root, self._layouts).run().places
        return Ranks(_path_ranks(places), self._rank_map, filter(None, tables))

    def _overtaken(self, steps: Mapping[StepKey, Sequence[Place]]) -> set[str]:
        """Return the places after which a later one of the same series (rank, graph...) has files."""
        # A job that is started again continues in a directory of a later time, and may repeat steps: then the
        # steps that the previous job reached do not tell how far this one is.
        latest: dict[object, str] = {}
        overtaken = set()
        keys = sorted((key for key in steps if key.step is not None), key=lambda key: key.order, reverse=True)
        for key in keys:
            for place in steps[key]:
                series = (key.rank, place.layout.name, series_of(place.fields))
                begun = place.fields.get("time", "")
                if series in latest and latest[series] >= begun:
                    overtaken.add(place.path)
                elif place.names or self._has_entries(place.path):
                    latest[series] = begun
        return overtaken

    def _has_entries(self, directory: str) -> bool:
        try:
            with os.scandir(f"{self.root}/{directory}") as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    def _expected_steps(self, run_listings: Iterable[Listing]) -> frozenset[int] | None:
        layouts = [layout for layout in self._layouts if layout.configuration]
        expected: set[int] = set()
        for file in (file for listing in run_listings for file in listing.files):
            for layout in layouts:
                if file.path.endswith(layout.configuration):
                    expected |= layout.expected_steps(self._read(file.path) or b"")
        return frozenset(expected) or None


def _directories_and_files(places: Iterable[Place]) -> set[str]:
    """Return the paths of places that are directories, and of files in them that are places of their own."""
    directories, of_files = set(), []
    for place in places:
        if place.names is None:
            directories.add(place.path)
        elif place.section is None:
            of_files.append((f"{place.directory}/", place.names))
    inside = ((above, names) for above, names in of_files if any(up in directories for up in parents(above)))
    return directories | {f"{above}{name}" for above, names in inside for name in names}


def _by_step(places: Iterable[Place], ranks: Ranks) -> dict[StepKey, list[Place]]:
    steps: dict[StepKey, list[Place]] = {}
    for place in places:
        rank, _ = ranks.resolve(place.rank)
        steps.setdefault(StepKey(rank, step_of(place.fields)), []).append(place)
    return steps


def _rank_of(owner: Owner, ranks: Ranks) -> int | None:
    """Return the rank that an owner's files belong to; files of no rank belong to the lowest one."""
    return ranks.lowest if owner.rank is None else ranks.resolve(owner.rank)[0]


def _path_ranks(places: Iterable[Place]) -> list[PathRank | None]:
    return [place.rank for place in places]


def _run_keys(discovery: Discovery, ranks: Ranks) -> set[StepKey]:
    owners = (_rank_of(owner, ranks) for owner in discovery.outside)
    return {StepKey(rank, None) for rank in owners if rank is not None}


def _run_listings(
    discovery: Discovery, ranks: Ranks, steps: Mapping[StepKey, Sequence[Place]]
) -> dict[StepKey, Listing]:
    layouts: dict[int, set[str]] = {}
    for key, places in steps.items():
        layouts.setdefault(key.rank, set()).update(place.layout.name for place in places)
    of_dump = {"", *all_parents(discovery.places)}
    listings: dict[StepKey, Listing] = {}
    for owner, walk in discovery.outside.items():
        rank = _rank_of(owner, ranks)
        if rank is None or owner.unproven not in of_dump:
            continue
        files, problems = _owned(owner, walk, of_dump)
        if not files and not problems:
            continue
        listing = Listing(
            StepKey(rank, None),
            tuple(sorted(files, key=lambda file: file.path)),
            walk.newest_change,
            later_begun=False,
            problems=tuple(problems),
            layout="+".join(sorted(layouts.get(rank, ()))),
            rank_from=ranks.source(rank),
        )
        _merge_into(listings, [listing])
    return listings


def _merge_into(listings: dict[StepKey, Listing], others: Iterable[Listing]) -> None:
    for listing in others:
        first = listings.get(listing.key)
        listings[listing.key] = listing if first is None else merge(first, listing)


def _owned(owner: Owner, walk: Walk, of_dump: Collection[str]) -> tuple[list[SourceFile], list[Problem]]:
    """Return the files and problems of an owner. Directories in the root may belong to somebody else."""
    if owner.rank is not None:
        return walk.files, walk.problems

    def is_ours(path: str) -> bool:
        return next(parents(path)) in of_dump

    return (
        [file for file in walk.files if is_ours(file.path)],
        [problem for problem in walk.problems if is_ours(problem.path)],
    )
