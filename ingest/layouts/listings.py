"""Listing the files of one rank and step, and whether an earlier listing may be used again."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from ingest.heartbeat import beat
from ingest.layouts.base import LayoutPlace, Listing, Place
from ingest.layouts.places import parents
from ingest.layouts.walk import Walk
from workers.model import SourceFile, StepKey

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
    places: Sequence[LayoutPlace],
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
    places = tuple(sorted(places, key=lambda located: located.place.path))
    if known is not None and _is_unchanged(root, known, [located.place for located in places]):
        return _without_beside(replace(known, later_begun=later_begun, rank_from=rank_from, places=places))
    walk = Walk(root)
    for located in places:
        place = located.place
        if place.names is None:
            walk.add_tree(place.path, without=without)
        elif place.section is None:
            walk.add_named(place.directory, place.names)
        else:
            walk.add_section(f"{place.directory}/{place.names[0]}".lstrip("/"), place.section)
    # A file that is a place by its name may be in a directory that is one, too.
    walk.files = sorted({file.path: file for file in walk.files}.values(), key=_path)
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
    files: dict[str, list[SourceFile]] = {located.place.path: [] for located in listing.places}
    named = _named_files(listing)
    homes: dict[str, list[SourceFile]] = {}
    """By directory, the files of the place that it is in; most files share their directory with thousands."""
    for file in listing.files:
        if named and file.path in named:
            files[named[file.path]].append(file)
            continue
        directory = file.path.rpartition("/")[0]
        if directory not in homes:
            place = next((parent for parent in parents(file.path) if parent in files), None)
            homes[directory] = [] if place is None else files[place]
        homes[directory].append(file)
    return files


def _named_files(listing: Listing) -> dict[str, str]:
    """Return the paths of the places that consist of some files of a directory, by the paths of the files."""
    places = [located.place for located in listing.places if located.place.names is not None]
    return {
        f"{place.directory}/{name}".lstrip("/"): place.path for place in places for name in place.names or ()
    }


def _is_unchanged(root: Path, known: Listing, places: Sequence[Place]) -> bool:
    of_files = [place for place in places if place.names is not None]
    if not _has_whole(known, places) or (of_files and not _has_same_files(known, of_files)):
        return False
    if any(mtime_ns / 1e9 > known.listed_at - _TICK_S for _, mtime_ns in known.directories):
        return False
    try:
        for directory, mtime_ns in known.directories:
            if os.stat(f"{root}/{directory}").st_mtime_ns != mtime_ns:  # noqa: PTH116 (twice as fast)
                return False
    except OSError:
        return False
    return bool(known.directories or of_files)


def _has_whole(known: Listing, places: Sequence[Place]) -> bool:
    """Return whether a listing has all places that are whole directories."""
    whole = [place.path for place in places if place.names is None]
    return {directory for directory, _ in known.directories}.issuperset(whole)


def _has_same_files(known: Listing, of_files: Sequence[Place]) -> bool:
    """Return whether a listing has these files, and was made when they had been quiet for a while."""
    listed = [located.place for located in known.places if located.place.names is not None]
    return listed == list(of_files) and known.newest_change <= known.listed_at - _TICK_S


def _without_beside(listing: Listing) -> Listing:
    """Return a listing of places without the files outside of them, which each scan adds again."""
    if listing.key.step is not None:
        return listing
    places = {located.place.path for located in listing.places}
    named = _named_files(listing)

    def is_in_place(path: str) -> bool:
        return path in places or path in named or any(parent in places for parent in parents(path))

    return replace(
        listing,
        files=tuple(file for file in listing.files if is_in_place(file.path)),
        problems=tuple(problem for problem in listing.problems if is_in_place(problem.path)),
    )
