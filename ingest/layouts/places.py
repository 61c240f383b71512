"""Finding places: directories that fit a pattern to its end, so that they hold a step or a part of it.

A directory is matched against the patterns of all layouts while the tree is walked. Only names are read here;
the files in places are listed later, by `ingest.layouts.walk`.

Names that resemble those of the directories of ranks and steps, and how these directories are reported.

What lies beside a dump that was found below the directory that a user named.

The rank of a place is told by the path, the user, or a rank table; else it is the device id.

The rank table of Ascend clusters (`hccl.json`) has `server_list[].device[]` with `device_id` and `rank_id`,
as text.

Trainers number the files of a checkpoint along each axis of parallelism. Ranks are counted over all of these
numbers in the dump, tensor parallelism fastest, as DeepSpeed and Megatron number their processes.

Ranks that two devices, or two runs of a job, claim: their tensors would be mixed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

from ingest.layouts.base import FIELDS, STEP_FIELDS, Layout, PathRank, Pattern, Place, Problem
from ingest.layouts.declared import CONTAINERS
from ingest.layouts.walk import Walk, begins_like, is_directory, parents
from workers.host.paths import absolute

_RANK_MAP_HINT = "Say which rank each device is: --rank-map 0=8,1=9."
_RUNS_HINT = (
    "Their steps have the same numbers. Ingest each run into a store of its own: name its directory, or move "
    "the others elsewhere."
)


def find_clashes(places: Iterable[Place], ranks: Ranks) -> dict[int, tuple[Problem, ...]]:
    """Return the problems of ranks that several devices or runs claim, by rank; no other rank is in it."""
    devices: dict[int, dict[int, str]] = {}
    runs: dict[int, dict[str, str]] = {}
    for place in places:
        path_rank = place.rank
        rank, _ = ranks.resolve(path_rank)
        if path_rank is not None and path_rank.kind == "device":
            devices.setdefault(rank, {}).setdefault(path_rank.number, place.directory)
        if place.layout.run_field in place.fields:
            runs.setdefault(rank, {}).setdefault(place.fields[place.layout.run_field], place.directory)
    problems: dict[int, tuple[Problem, ...]] = {}
    for rank, of_rank in devices.items():
        if len(of_rank) > 1:
            (first, path), (second, _), *_ = sorted(of_rank.items())
            reason = f"devices {first} and {second} would both be rank {rank}"
            problems[rank] = (Problem(path, reason, _RANK_MAP_HINT, denied=True),)
    for rank, of_run in runs.items():
        if len(of_run) > 1:
            one, other, *_ = sorted(of_run.values())
            reason = f"{one} and {other} are dumps of two processes of rank {rank}"
            problem = Problem(one, reason, _RUNS_HINT, denied=True)
            problems[rank] = (*problems.get(rank, ()), problem)
    return problems


#: The most ranks that a table may give.
_MAX_RANKS = 1_000_000
_TABLE_NAMES = ("hccl", "rank_table", "ranktable")


def _mesh_sizes(path_ranks: Iterable[PathRank]) -> list[int]:
    places = [rank.place for rank in path_ranks if rank.kind == "mesh"]
    return [max(numbers) + 1 for numbers in zip(*places, strict=True)]


class Ranks:
    """The ranks of one dump.

    Args:
        path_ranks: what the paths of all places say.
        rank_map: ranks by device id, from the user.
        tables: the content of rank tables in the dump.
    """

    def __init__(
        self, path_ranks: Sequence[PathRank | None], rank_map: Mapping[int, int], tables: Iterable[bytes]
    ) -> None:
        self.problems: list[Problem] = []
        self._map = rank_map
        # Each rank may have a copy of the table of all ranks.
        entries = [entry for table in dict.fromkeys(tables) for entry in _parse(table)]
        self._table = _merge(entries, self.problems)
        self.expected: int | None = len({rank for _, rank in entries}) or None
        """How many ranks the tables name, on all hosts; None without a table."""
        known = [rank for rank in path_ranks if rank is not None]
        # If only one process has its id in the path, the job has only this process.
        self._is_single = len(set(known)) == 1 and known[0].kind == "pid"
        self._mesh_sizes = _mesh_sizes(known)
        resolved = [self.resolve(rank) for rank in path_ranks]
        self._sources = dict(resolved)
        self.lowest = min((rank for rank, _ in resolved), default=None)

    def resolve(self, path_rank: PathRank | None) -> tuple[int, str]:
        """Return the rank, and where it comes from."""
        if path_rank is None or (path_rank.kind == "pid" and self._is_single):
            return 0, "single process"
        number = path_rank.number
        if path_rank.kind in ("rank", "mesh"):
            return self._rank_in_mesh(path_rank.place) if path_rank.place else number, "path"
        if path_rank.kind == "pid":
            return number, "process id"
        if number in self._map:
            return self._map[number], "rank map"
        if number in self._table:
            return self._table[number], "rank table"
        return number, "device id"

    def _rank_in_mesh(self, place: tuple[int, ...]) -> int:
        rank = 0
        for number, size in zip(place, self._mesh_sizes, strict=True):
            rank = rank * size + number
        return rank

    def sources_of(self, places: Iterable[Place]) -> str:
        """Return where the ranks of places come from."""
        return "+".join(sorted({self.resolve(place.rank)[1] for place in places}))

    def source(self, rank: int) -> str:
        """Return where a rank comes from."""
        return self._sources.get(rank, "path")


def is_rank_table(path: str) -> bool:
    """Return whether a file is named like a rank table."""
    name = path.rpartition("/")[2]
    return name.endswith(".json") and name.startswith(_TABLE_NAMES)


def _merge(entries: Iterable[tuple[int, int]], problems: list[Problem]) -> dict[int, int]:
    ranks: dict[int, set[int]] = {}
    for device, rank in entries:
        ranks.setdefault(device, set()).add(rank)
    unclear = sorted(device for device, candidates in ranks.items() if len(candidates) > 1)
    if unclear:
        problems.append(
            Problem(
                "hccl.json",
                f"gives several ranks for device {unclear[0]}: it covers several hosts",
                "Say which ranks are on this host: --rank-map 0=8,1=9.",
            )
        )
    return {device: candidates.pop() for device, candidates in ranks.items() if len(candidates) == 1}


def _parse(data: bytes) -> list[tuple[int, int]]:
    """Return device ids and their ranks; nothing if the file is not a rank table, although named like one."""
    try:
        devices = [
            # As text, because `int` takes half a device for a whole one, and fails for infinity.
            (int(str(device["device_id"])), int(str(device["rank_id"])))
            for server in json.loads(data)["server_list"]
            for device in server["device"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [(device, rank) for device, rank in devices[:_MAX_RANKS] if device >= 0 and 0 <= rank < _MAX_RANKS]


def tensors_beside(directory: Path, root: Path) -> tuple[Path, ...]:
    """Return directories that hold tensor files outside of the dump and of stores, in order.

    Looks at the first entries of each directory beside those from `directory` down to the dump.

    Args:
        directory: what the user named.
        root: the dump that was found there, perhaps some levels below.
    """
    directory = absolute(directory)
    if root == directory or not root.is_relative_to(directory):
        return ()
    way_down = [root, *(above for above in root.parents if above.is_relative_to(directory))]
    beside = {child for above in way_down[1:] for child in _directories(above)}.difference(way_down)
    return tuple(
        sorted(
            child
            for child in beside
            if not (child / "zarr.json").exists() and holds_tensors(child, _SUFFIXES)
        )
    )


def _directories(above: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(above) as entries:
        yield from [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


#: A number as people may write one, in any digits. What a dump system writes fits the fields of patterns.
_NUMBER = re.compile(r"[-+]?\d+")
#: How names begin that resemble those of the directories of ranks.
_LIKE_RANK = re.compile(r"rank[-+_ ]?\d.*", re.DOTALL | re.IGNORECASE)
_NO_RANK = "is not how a dump names the directory of a rank"
_RANK_HINT = (
    "Ranks go from 0 to 999999999, without a sign, in ASCII digits, and without zeros in front. Rename the "
    "directory, and run the same command again."
)
_NO_STEP = "is not how a dump names a step"
_STEP_HINT = (
    "Steps have at most 18 ASCII digits and no sign. The store keeps these files with the run files of their "
    "rank, as files. Rename the directory, and run the same command again."
)


def misnamed_rank(of_rank: str, path: str) -> Problem:
    """Return the problem of a directory that resembles that of a rank, or is below `of_rank`, which does."""
    number = of_rank.rpartition("/")[2].removeprefix("rank").removeprefix("_")
    if _NUMBER.fullmatch(number) is None:
        return Problem(path, _NO_RANK, misnamed=True)
    return Problem(of_rank, _NO_RANK, _RANK_HINT, left_out=True, misnamed=True)


#: How many entries of a directory are looked at to find out whether it holds a dump.
MAX_SEEN = 256
_SUFFIXES = frozenset(CONTAINERS)
_UNFIT = "has tensor files and fits no pattern of --layout: nothing in it is ingested"
_UNFIT_HINT = (
    "If they belong to the dump, add a pattern behind a semicolon: --layout "
    "'rank{rank}/step{step}/{module}.pt; other/{module}.pt'."
)
_BeginsLike: TypeAlias = Callable[[str, re.Pattern[bytes]], bool]
"""Returns whether the first bytes of a file have a match; see `begins_like`."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The rank that files outside of places belong to."""

    rank: PathRank | None
    unproven: str = ""
    """A directory that belongs to a dump only if there is a place below it; "" if it certainly does."""


@dataclass(slots=True)
class Discovery:
    """What one walk over the directories of a dump finds."""

    unowned: Walk
    """Lists directories that belong to no rank; has their problems, and no files."""
    places: list[Place] = field(default_factory=list)
    outside: dict[Owner, Walk] = field(default_factory=dict)

    def outside_of(self, owner: Owner) -> Walk:
        """Return the walk that collects the files of an owner."""
        return self.outside.setdefault(owner, Walk(self.unowned.root))


@dataclass(frozen=True, slots=True)
class _Match:
    layout: Layout
    pattern: Pattern
    level: int
    fields: Mapping[str, str]

    def enter(self, name: str) -> _Match | None:
        if self.level >= self.pattern.directories:
            return None
        fields = self.pattern.match(self.level, name)
        if fields is None:
            return None
        return replace(self, level=self.level + 1, fields={**self.fields, **fields})

    @property
    def is_complete(self) -> bool:
        return self.level == len(self.pattern.levels)

    @property
    def is_at_files(self) -> bool:
        """Whether the names of files are what comes next."""
        return self.pattern.of_files and self.level == self.pattern.directories


@dataclass(frozen=True, slots=True)
class _Directory:
    path: str
    matches: Sequence[_Match]
    in_place: bool


class _FilePlaces:
    """The places in one directory that are told by the names of its files."""

    def __init__(self, directory: _Directory, is_like: Callable[[Layout, str], bool]) -> None:
        self._path = directory.path
        self._is_like = is_like
        matches = [match for match in directory.matches if match.is_at_files]
        # What is needed of a pattern for each name of a file, of which there may be many.
        levels = [match.pattern.levels[match.level] for match in matches]
        told = [[field for field in level.groupindex if field in FIELDS] for level in levels]
        self._levels = [*zip(matches, levels, told, strict=True)]
        self._names: dict[tuple[int, tuple[str, ...]], list[str]] = {}

    def add(self, name: str) -> tuple[_Match, re.Match[str]] | None:
        """Add a file; return its match, and that of its name; None if it does not belong to a place."""
        for number, (match, level, told) in enumerate(self._levels):
            matched = level.fullmatch(name)
            if matched is not None and self._is_like(match.layout, f"{self._path}/{name}"):
                values = tuple([matched[field] for field in told])
                self._names.setdefault((number, values), []).append(name)
                return match, matched
        return None

    def places(self) -> Iterator[Place]:
        for (number, values), names in self._names.items():
            match, _, told = self._levels[number]
            of_names = dict(zip(told, values, strict=True))
            fields = {**match.layout.implied, **match.fields, **of_names}
            virtual = ",".join(f"{name}={value}" for name, value in of_names.items())
            yield Place(match.layout, f"{self._path}/{virtual}", fields, tuple(sorted(names)))


class PlaceSearch:
    """A walk over the directories of one dump.

    Args:
        root: the directory from which the patterns are matched.
        layouts: the layouts that may be found.
        below: only this directory, relative to `root`, is entered; "" for all.
    """

    def __init__(self, root: Path, layouts: Sequence[Layout], below: str = "") -> None:
        self._root = root
        self._layouts = layouts
        self._below = tuple(below.split("/")) if below else ()
        #: Directories that fit no pattern of a layout of the whole tree, and the suffixes of its files.
        self._unfit: dict[str, frozenset[str]] = {}
        #: Directories whose names begin like those of the ranks beside them, where a pattern has these.
        self._near_ranks: list[str] = []
        self._begins_like: _BeginsLike = begins_like

    def run(self) -> Discovery:
        """Return what is there now."""
        discovery = Discovery(Walk(self._root))
        # The name of a file may fit several patterns: it is opened once.
        self._begins_like = cache(begins_like)
        matches = [
            _Match(layout, pattern, 0, {})
            for layout in self._layouts
            for pattern in (*layout.transient, *layout.patterns, *layout.file_patterns)
        ]
        pending = [_Directory("", matches, in_place=False)]
        while pending:
            pending += self._subdirectories(pending.pop(), discovery)
        of_dump = all_parents(discovery.places) | {place.path for place in discovery.places}
        problems = discovery.unowned.problems
        for path, suffixes in sorted(self._unfit.items()):
            if path not in of_dump and holds_tensors(self._root / path, suffixes):
                problems.append(Problem(path, _UNFIT, _UNFIT_HINT, left_out=True))
        self._report_near_ranks(problems, of_dump)
        return discovery

    def _report_near_ranks(self, problems: list[Problem], of_dump: set[str]) -> None:
        reported = {above for problem in problems for above in (problem.path, *parents(problem.path))}
        near = sorted(set(self._near_ranks) - reported - of_dump)
        holding = (path for path in near if holds_tensors(self._root / path, _SUFFIXES))
        problems += [misnamed_rank(path, path) for path in holding]

    def _subdirectories(self, directory: _Directory, discovery: Discovery) -> Iterator[_Directory]:
        owner = _owner(directory)
        depth = directory.path.count("/") + 1 if directory.path else 0
        of_files = _FilePlaces(directory, self._is_like)
        walk = discovery.unowned if owner.rank is None else discovery.outside_of(owner)
        for entry in walk.entries(directory.path):
            if depth < len(self._below) and entry.name != self._below[depth]:
                continue
            path = f"{directory.path}/{entry.name}" if directory.path else entry.name
            if is_directory(entry):
                if subdirectory := self._enter(directory, entry.name, path, owner, discovery):
                    yield subdirectory
            elif (matched := of_files.add(entry.name)) is None:
                if not directory.in_place:
                    discovery.outside_of(owner).add_file(entry, path)
            elif matched[0].layout.step_of_line is not None:
                # What it has of each step belongs to that; as a file, it belongs to the rank.
                match, of_name = matched
                rank = PathRank.of({**match.fields, **of_name.groupdict()})
                discovery.outside_of(Owner(rank)).add_file(entry, path)
        discovery.places += of_files.places()

    def _enter(
        self, directory: _Directory, name: str, path: str, owner: Owner, discovery: Discovery
    ) -> _Directory | None:
        matches = self._matches(directory, name, path)
        complete = [match for match in matches if match.is_complete]
        if owner.rank is None and not directory.in_place:
            self._note_unfit(directory, matches, path)
            if not complete and _is_misnamed_rank(directory, name):
                self._near_ranks.append(path)
        if any(match.pattern in match.layout.transient for match in complete):
            return None
        if complete:
            match = self._claimant(complete, path)
            fields = {**match.layout.implied, **match.fields}
            discovery.places.append(Place(match.layout, path, fields))
        if len(complete) < len(matches):
            return _Directory(path, matches, directory.in_place or bool(complete))
        if not matches and not directory.in_place:
            self._pass_by(directory, path, owner, discovery)
        return None

    def _claimant(self, complete: Sequence[_Match], path: str) -> _Match:
        """Return the match to which a place belongs: the user's if it fits a file in it, else another's."""
        if len(complete) == 1:
            return complete[0]
        own = [match for match in complete if match.layout.own_file is not None]
        claims = (match for match in own if self._has_entry(match.layout.own_file, path))
        return next(claims, next((match for match in complete if match not in own), complete[0]))

    def _note_unfit(self, directory: _Directory, matches: Sequence[_Match], path: str) -> None:
        """Remember a subdirectory if the user's patterns led to its parent, and none of them fits it."""
        suffixes = [suffix for match in directory.matches for suffix in match.layout.tensor_suffixes]
        if suffixes and not any(match.layout.tensor_suffixes for match in matches):
            self._unfit[path] = frozenset(suffixes)

    def _matches(self, directory: _Directory, name: str, path: str) -> list[_Match]:
        entered = [entered for match in directory.matches if (entered := match.enter(name)) is not None]
        return _with_siblings([match for match in entered if self._is_likely(match, path)], entered)

    def _is_likely(self, match: _Match, directory: str) -> bool:
        """Return whether the first entries of a directory agree with what a pattern expects in it."""
        if match.is_complete and not self._has_entry(match.layout.evidence, directory):
            return False
        level = match.pattern.levels[match.level] if match.is_at_files else None
        return self._has_entry(
            level, directory, lambda name: self._is_like(match.layout, f"{directory}/{name}"), MAX_SEEN
        )

    def _is_like(self, layout: Layout, path: str) -> bool:
        content = layout.content
        return content is None or self._begins_like(f"{self._root}/{path}", content)

    def _has_entry(
        self,
        expression: re.Pattern[str] | None,
        directory: str,
        is_like: Callable[[str], bool] = lambda _: True,
        most: int | None = None,
    ) -> bool:
        """Return whether a directory has, among its first entries, one of such a name and content.

        Any will do without an expression.
        """
        if expression is None:
            return True
        try:
            with os.scandir(f"{self._root}/{directory}") as entries:
                return any(
                    expression.fullmatch(entry.name) and is_like(entry.name)
                    for entry in itertools.islice(entries, most)
                )
        except PermissionError:
            return True  # to be reported when it is listed
        except OSError:
            return False

    def _pass_by(self, directory: _Directory, path: str, owner: Owner, discovery: Discovery) -> None:
        """Add a directory of a rank, outside of places. Directories of no rank belong to somebody else."""
        if owner.rank is not None:
            discovery.outside_of(owner).add_tree(path)
            # A number where a pattern has that of a step.
            if _NUMBER.fullmatch(path.rpartition("/")[2]) and _expects(directory, STEP_FIELDS):
                problem = Problem(path, _NO_STEP, _STEP_HINT, left_out=True, misnamed=True)
                discovery.unowned.problems.append(problem)
        elif any(layout.near_miss and layout.near_miss.fullmatch(path) for layout in self._layouts):
            top, _, _ = path.partition("/")
            problem = misnamed_rank(top, path)
            if problem not in discovery.unowned.problems:
                discovery.unowned.problems.append(problem)


def _with_siblings(likely: Sequence[_Match], entered: Sequence[_Match]) -> list[_Match]:
    """Return the likely matches, and those of other names of files that their layouts have in the directory.

    Only the first entries were looked at: among thousands of files, those of another pattern may come later.
    """
    there = {match.layout for match in likely if match.is_complete or match.is_at_files}
    return [match for match in entered if match in likely or (match.is_at_files and match.layout in there)]


def _is_misnamed_rank(directory: _Directory, name: str) -> bool:
    """Return whether a name begins like that of a rank where patterns have one, and fits none of them."""
    if not _LIKE_RANK.fullmatch(name) or not _expects(directory, ("rank",)):
        return False
    entered = (match.enter(name) for match in directory.matches)
    return not any(match is not None and "rank" in match.fields for match in entered)


def _expects(directory: _Directory, fields: Iterable[str]) -> bool:
    """Return whether a pattern has one of these fields in the names of the entries of a directory."""
    return any(
        not match.pattern.levels[match.level].groupindex.keys().isdisjoint(fields)
        for match in directory.matches
        if not match.is_complete
    )


def holds_tensors(directory: Path, suffixes: frozenset[str]) -> bool:
    """Return whether one of the first entries at or below a directory is a file with one of the suffixes."""
    pending, budget = [directory], MAX_SEEN
    while pending and budget > 0:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in itertools.islice(entries, budget):
                    budget -= 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    elif entry.name.rpartition(".")[2] in suffixes:
                        return True
        except OSError:
            continue  # nothing in it is part of the dump
    return False


def _owner(directory: _Directory) -> Owner:
    owner = Owner(None)
    for match in directory.matches:
        rank = PathRank.of(match.fields)
        if rank is not None and match.level >= match.pattern.proof:
            return Owner(rank)
        if rank is not None and owner.rank is None:
            owner = Owner(rank, directory.path)
    return owner


def all_parents(places: Iterable[Place]) -> set[str]:
    """Return every directory above a place."""
    directories: set[str] = set()
    for place in places:
        for directory in parents(place.path):
            if directory in directories:
                break
            directories.add(directory)
    return directories
