"""A tree of dumps, walked once for all layouts.

Directories are matched against the patterns of every layout while the tree is walked. One that fits a pattern
to its end is a place: it holds a step of one rank, or a part of it. All places of one rank and step, of
whatever layout, make one listing. What lies beside the places belongs to the run files of a rank.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingest.layouts import mindspore
from ingest.layouts.base import (
    Defer,
    Description,
    DumpScan,
    Layout,
    LayoutPlace,
    Listing,
    Place,
    Problem,
    TensorFile,
)
from ingest.layouts.pattern import Pattern
from ingest.layouts.ranks import RankOf, Ranks
from ingest.layouts.walk import Walk, read_small
from workers.dump.model import ReportedStatistics
from workers.model import SourceFile, StepKey

#: How long a directory must have been quiet before its time proves that nothing was added: file systems
#: stamp with the time of their last tick.
_TICK_S = 2.0
#: How long a listing is trusted at least, as long as the times of its directories do not change.
_SHORTEST_TRUST_S = 60.0
#: What GE writes where it has no step yet.
_NO_STEP = 2147483647


@dataclass(frozen=True, slots=True)
class _Partial:
    """A pattern of which the first levels fit a directory."""

    layout: Layout
    pattern: Pattern
    level: int
    fields: Mapping[str, str]

    def enter(self, name: str) -> _Partial | None:
        if self.level == len(self.pattern.levels):
            return None
        found = self.pattern.match(self.level, name)
        return (
            found if found is None else replace(self, level=self.level + 1, fields={**self.fields, **found})
        )

    @property
    def whole(self) -> bool:
        return self.level == len(self.pattern.levels)


@dataclass(frozen=True, slots=True)
class _Owner:
    """To whom files beside the places belong."""

    rank: RankOf | None
    unproven: str = ""
    """A directory that is a dump's only if there is a place below it; "" for one that surely is."""


@dataclass(slots=True)
class _Found:
    """What one walk finds: names of directories first, their files only later."""

    walk: Walk
    places: list[LayoutPlace] = field(default_factory=list)
    beside: dict[_Owner, Walk] = field(default_factory=dict)
    """Files beside the places, by owner."""

    def of(self, owner: _Owner) -> Walk:
        """Return the walk that takes what belongs to an owner."""
        return self.beside.setdefault(owner, Walk(self.walk.root))


class DumpTree:
    """One dump directory: what belongs together, in any mixture of layouts."""

    def __init__(
        self,
        root: Path,
        layouts: Sequence[Layout],
        *,
        below: str = "",
        rank_map: Mapping[int, int] | None = None,
    ) -> None:
        """Look at the dump in `root`.

        Args:
            root: the directory from which the patterns are matched.
            layouts: what may be found.
            below: a directory, relative to `root`, outside of which nothing is looked at.
            rank_map: ranks of device ids, where the user gives them.
        """
        self.root = root
        self._layouts = layouts
        self._below = tuple(below.split("/")) if below else ()
        self._rank_map = dict(rank_map or {})

    def scan(self, known: Mapping[StepKey, Listing], defer: Defer = lambda _: ()) -> DumpScan:
        """List every step now; see `Dump.scan`."""
        found = _Found(Walk(self.root))
        patterns = [
            _Partial(layout, pattern, 0, {})
            for layout in self._layouts
            for pattern in (*layout.transient, *layout.patterns)
        ]
        self._descend("", patterns, found)
        ranks = Ranks(
            [RankOf.of(located.place.fields) for located in found.places],
            self._rank_map,
            [
                data
                for walk in found.beside.values()
                for file in walk.files
                if (data := self._rank_table(file.path)) is not None
            ],
        )
        steps: dict[StepKey, list[LayoutPlace]] = {}
        sources: dict[StepKey, set[str]] = {}
        devices: dict[int, dict[int, str]] = {}
        for located in found.places:
            one = RankOf.of(located.place.fields)
            rank, rank_from = ranks.resolve(one)
            if one is not None and one.kind == "device":
                devices.setdefault(rank, {}).setdefault(one.number, located.place.path)
            key = StepKey(rank, step_of(located.place.fields))
            steps.setdefault(key, []).append(located)
            sources.setdefault(key, set()).add(rank_from)
        # All names first, and files only then: what is seen of a step then includes everything that was
        # there when the later step was seen.
        overtaken = self._overtaken(steps)
        elsewhere = {located.place.path for located in found.places}
        listings = {}
        runs = [StepKey(of, None) for owner in found.beside if (of := _rank_of(owner, ranks)) is not None]
        deferred = set(defer({*steps, *runs})) - known.keys()
        unlisted = frozenset(key for key in steps if key in deferred and key.step is not None)
        for key, places in steps.items():
            if key in unlisted:
                continue
            later_begun = key.step is not None and all(p.place.path in overtaken for p in places)
            listings[key] = self._listing(
                key,
                places,
                elsewhere,
                "+".join(sorted(sources[key])),
                later_begun=later_begun,
                known=known.get(key),
            )
        for key, listing in listings.items():
            if len(clash := devices.get(key.rank, {})) > 1:
                problems = dict.fromkeys((*listing.problems, _clash(key.rank, clash)))
                listings[key] = replace(listing, problems=tuple(problems))
        expected: set[int] = set()
        for key, listing in self._run_listings(found, ranks).items():
            listings[key] = _together(listings[key], listing) if key in listings else listing
            for file in listing.files:
                expected |= self._expected_steps(file.path)
        ordered = tuple(listings[key] for key in sorted(listings, key=lambda key: key.order))
        beside = (*found.walk.problems, *ranks.problems)
        return DumpScan(ordered, beside, frozenset(expected) or None, unlisted)

    def describe(self, listing: Listing) -> Description:
        """Return what names and small files tell; see `Dump.describe`."""
        named: dict[str, TensorFile] = {}
        reported: list[ReportedStatistics] = []
        problems: list[Problem] = []
        unfinished = ""
        files = _by_place(listing)
        for located in listing.places:
            described = located.layout.describe(located.place, files[located.place.path], self._read)
            named.update(described.named)
            reported += described.reported
            problems += described.problems
            unfinished = unfinished or described.unfinished
        return Description(named, reported, problems, unfinished)

    def _read(self, path: str) -> bytes | None:
        return read_small(self.root / path)

    def _descend(self, directory: str, live: Sequence[_Partial], found: _Found) -> None:
        """Find the places below a directory of which the first levels of some patterns fit."""
        ahead: list[tuple[str, Sequence[_Partial], bool]] = [(directory, live, False)]
        while ahead:
            directory, live, inside_place = ahead.pop()
            depth = directory.count("/") + 1 if directory else 0
            owner = _owner(directory, live)
            inside_place = inside_place or any(one.whole for one in live)
            walk = found.walk if owner.rank is None else found.of(owner)
            for entry in walk.entries(directory):
                path = f"{directory}/{entry.name}" if directory else entry.name
                if depth < len(self._below) and entry.name != self._below[depth]:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    if not inside_place:
                        found.of(owner).take(entry, path)
                    continue
                entered = [one for partial in live if (one := partial.enter(entry.name)) is not None]
                entered = [one for one in entered if not one.whole or self._has_evidence(one.layout, path)]
                if any(one.whole and one.pattern in one.layout.transient for one in entered):
                    continue
                if place := next((one for one in entered if one.whole), None):
                    found.places.append(LayoutPlace(place.layout, Place(path, place.fields)))
                if any(not one.whole for one in entered):
                    ahead.append((path, entered, inside_place))
                elif not entered and not inside_place:
                    self._pass_by(path, owner, found)

    def _has_evidence(self, layout: Layout, directory: str) -> bool:
        if layout.evidence is None:
            return True
        try:
            with os.scandir(f"{self.root}/{directory}") as entries:
                return any(layout.evidence.fullmatch(entry.name) for entry in entries)
        except PermissionError:
            return True  # to be said when it is listed
        except OSError:
            return False

    def _pass_by(self, path: str, owner: _Owner, found: _Found) -> None:
        """Take what stands in a rank but in no place; what belongs to no rank is not ours."""
        if owner.rank is not None:
            found.of(owner).take_tree(path)
        elif path.startswith("rank_"):
            found.walk.problems.append(Problem(path, "is not how a dump names the directory of a rank"))

    def _run_listings(self, found: _Found, ranks: Ranks) -> dict[StepKey, Listing]:
        """Return what stands beside the places, by rank; what is of no rank belongs to the lowest."""
        listings: dict[StepKey, Listing] = {}
        layouts: dict[int, set[str]] = {}
        for located in found.places:
            numbered, _ = ranks.resolve(RankOf.of(located.place.fields))
            layouts.setdefault(numbered, set()).add(located.layout.name)
        ours = {"", *_all_above(found.places)}
        for owner, walk in found.beside.items():
            rank = _rank_of(owner, ranks)
            if rank is None or owner.unproven not in ours:
                continue
            key = StepKey(rank, None)
            # There may be other directories in the root, which are not ours.
            files = [file for file in walk.files if owner.rank is not None or next(_above(file.path)) in ours]
            problems = [p for p in walk.problems if owner.rank is not None or next(_above(p.path)) in ours]
            if not files and not problems:
                continue
            one = Listing(
                key,
                tuple(sorted(files, key=lambda file: file.path)),
                walk.newest_change,
                later_begun=False,
                problems=tuple(problems),
                layout="+".join(sorted(layouts.get(rank, ()))),
                rank_from=ranks.source(rank),
            )
            listings[key] = _together(listings[key], one) if key in listings else one
        return listings

    def _overtaken(self, steps: Mapping[StepKey, Sequence[LayoutPlace]]) -> set[str]:
        """Return the places after which a later one of the same series (rank, graph...) has files."""
        # A job that starts again goes on in a directory of a later time, and may go through steps again:
        # then steps that the job before had reached say nothing of how far it is.
        latest: dict[object, str] = {}
        overtaken = set()
        for key in sorted(
            (key for key in steps if key.step is not None), key=lambda key: key.order, reverse=True
        ):
            for located in steps[key]:
                series = (key.rank, located.layout.name, located.place.series)
                begun = located.place.fields.get("time", "")
                if series in latest and latest[series] >= begun:
                    overtaken.add(located.place.path)
                elif self._has_entries(located.place.path):
                    latest[series] = begun
        return overtaken

    def _has_entries(self, directory: str) -> bool:
        try:
            with os.scandir(f"{self.root}/{directory}") as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    def _listing(
        self,
        key: StepKey,
        places: list[LayoutPlace],
        elsewhere: Collection[str],
        rank_from: str,
        *,
        later_begun: bool,
        known: Listing | None,
    ) -> Listing:
        listed_at = time.time()
        places = sorted(places, key=lambda located: located.place.path)
        if known is not None and self._unchanged(known, [p.place.path for p in places], listed_at):
            return _without_beside(
                replace(known, later_begun=later_begun, rank_from=rank_from, places=tuple(places))
            )
        walk = Walk(self.root)
        for located in places:
            walk.take_tree(located.place.path, without=elsewhere)
        walk.files.sort(key=lambda file: file.path)
        return Listing(
            key,
            tuple(walk.files),
            walk.newest_change,
            later_begun,
            tuple(walk.directories),
            listed_at,
            tuple(walk.problems),
            layout="+".join(sorted({located.layout.name for located in places})),
            rank_from=rank_from,
            places=tuple(places),
        )

    def _unchanged(self, known: Listing, places: Collection[str], now: float) -> bool:
        if not {directory for directory, _ in known.directories}.issuperset(places):
            return False
        # A file that goes on growing leaves no trace in its directory. So a listing is trusted for as long
        # again as its files had been quiet: a step is listed ever more rarely, but again and again.
        if not 0 <= now - known.listed_at < max(known.listed_at - known.newest_change, _SHORTEST_TRUST_S):
            return False
        for directory, mtime_ns in known.directories:
            if mtime_ns / 1e9 > known.listed_at - _TICK_S:
                return False
            try:
                if os.stat(f"{self.root}/{directory}").st_mtime_ns != mtime_ns:  # noqa: PTH116 (twice as fast)
                    return False
            except OSError:
                return False
        return bool(known.directories)

    def _rank_table(self, path: str) -> bytes | None:
        name = path.rpartition("/")[2]
        is_table = name.endswith(".json") and name.startswith(("hccl", "rank_table", "ranktable"))
        return self._read(path) if is_table else None

    def _expected_steps(self, path: str) -> frozenset[int]:
        if not path.endswith(mindspore.CONFIGURATION):
            return frozenset()
        try:
            settings = json.loads(self._read(path) or b"")["common_dump_settings"]
            return mindspore.parse_iterations(settings["iteration"]) or frozenset()
        except (ValueError, KeyError, TypeError, RecursionError):
            return frozenset()  # optional, and no version promises it


def _rank_of(owner: _Owner, ranks: Ranks) -> int | None:
    """Return the rank that an owner's files belong to; what is of no rank belongs to the lowest."""
    return ranks.lowest if owner.rank is None else ranks.resolve(owner.rank)[0]


def _owner(directory: str, live: Sequence[_Partial]) -> _Owner:
    owner = _Owner(None)
    for one in live:
        rank = RankOf.of(one.fields)
        if rank is not None and one.level >= one.pattern.proof:
            return _Owner(rank)
        if rank is not None and owner.rank is None:
            owner = _Owner(rank, directory)
    return owner


def step_of(fields: Mapping[str, str]) -> int | None:
    """Return the step; that of the user's, where the path has it beside the graph engine's."""
    if "previous_step" in fields:  # TorchAir once named directories after the step to come
        return max(int(fields["previous_step"]) - 1, 0)
    text = fields.get("step", fields.get("iteration"))
    return None if text is None or int(text) == _NO_STEP else int(text)


def _by_place(listing: Listing) -> dict[str, list[SourceFile]]:
    """Return the files of each place; of places within one another, the inner one has them."""
    files: dict[str, list[SourceFile]] = {located.place.path: [] for located in listing.places}
    for file in listing.files:
        directory = next((above for above in _above(file.path) if above in files), None)
        if directory is not None:
            files[directory].append(file)
    return files


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first, down to the root, which is ""."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _all_above(places: Iterable[LayoutPlace]) -> set[str]:
    """Return every directory that stands above a place."""
    found: set[str] = set()
    for located in places:
        for directory in _above(located.place.path):
            if directory in found:
                break
            found.add(directory)
    return found


def _clash(rank: int, devices: Mapping[int, str]) -> Problem:
    """Return what keeps a rank from being taken: two devices would be one, and their tensors mixed."""
    (first, path), (second, _) = sorted(devices.items())[:2]
    return Problem(
        path,
        f"devices {first} and {second} would both be rank {rank}",
        "Say which rank each device is: --rank-map 0=8,1=9.",
        denied=True,
    )


def _without_beside(listing: Listing) -> Listing:
    """Return a listing of places without what stands beside them, which each scan adds anew."""
    if listing.key.step is not None:
        return listing
    places = {located.place.path for located in listing.places}

    def is_in_place(path: str) -> bool:
        return path in places or any(above in places for above in _above(path))

    return replace(
        listing,
        files=tuple(file for file in listing.files if is_in_place(file.path)),
        problems=tuple(problem for problem in listing.problems if is_in_place(problem.path)),
    )


def _together(first: Listing, second: Listing) -> Listing:
    """Return two listings of one key as one."""
    return replace(
        first,
        files=tuple(sorted((*first.files, *second.files), key=lambda file: file.path)),
        newest_change=max(first.newest_change, second.newest_change),
        problems=(*first.problems, *second.problems),
    )
