"""Ranks that two devices, or two runs of a job, claim: their tensors would be mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ingest.layouts.base import LayoutPlace, Problem
from ingest.layouts.ranks import PathRank, Ranks

_RANK_MAP_HINT = "Say which rank each device is: --rank-map 0=8,1=9."
_RUNS_HINT = (
    "Their steps have the same numbers. Ingest each run into a store of its own: name its directory, or move "
    "the others elsewhere."
)


def find_clashes(places: Iterable[LayoutPlace], ranks: Ranks) -> dict[int, tuple[Problem, ...]]:
    """Return the problems of ranks that several devices or runs claim, by rank; no other rank is in it."""
    devices: dict[int, dict[int, str]] = {}
    runs: dict[int, dict[str, str]] = {}
    for located in places:
        place = located.place
        path_rank = PathRank.of(place.fields)
        rank, _ = ranks.resolve(path_rank)
        if path_rank is not None and path_rank.kind == "device":
            devices.setdefault(rank, {}).setdefault(path_rank.number, place.directory)
        if located.layout.run_field in place.fields:
            runs.setdefault(rank, {}).setdefault(place.fields[located.layout.run_field], place.directory)
    claimed = {rank: (*_of_devices(rank, devices), *_of_runs(rank, runs)) for rank in {*devices, *runs}}
    return {rank: problems for rank, problems in claimed.items() if problems}


def _of_devices(rank: int, devices: Mapping[int, Mapping[int, str]]) -> Iterable[Problem]:
    claims = sorted(devices.get(rank, {}).items())
    if len(claims) > 1:
        (first, path), (second, _) = islice(claims, 2)
        reason = f"devices {first} and {second} would both be rank {rank}"
        yield Problem(path, reason, _RANK_MAP_HINT, denied=True)


def _of_runs(rank: int, runs: Mapping[int, Mapping[str, str]]) -> Iterable[Problem]:
    claims = sorted(runs.get(rank, {}).values())
    if len(claims) > 1:
        first, second = islice(claims, 2)
        reason = f"{first} and {second} are dumps of two processes of rank {rank}"
        yield Problem(first, reason, _RUNS_HINT, denied=True)
