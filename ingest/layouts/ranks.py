"""Which rank a place belongs to: the path tells, or the user, or a rank table; else it is the device id.

The rank table of Ascend clusters (`hccl.json`) has `server_list[].device[]` with `device_id` and `rank_id`,
as text.

Trainers number the files of a checkpoint along each axis of parallelism. Ranks are counted over all of these
numbers in the dump, tensor parallelism fastest, as DeepSpeed and Megatron number their processes.

Ranks that two devices, or two runs of a job, claim: their tensors would be mixed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

from ingest.layouts.base import LayoutPlace, Problem
from ingest.layouts.pattern import MESH_FIELDS

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


#: The most ranks that a table may give.
_MAX_RANKS = 1_000_000
_TABLE_NAMES = ("hccl", "rank_table", "ranktable")


@dataclass(frozen=True, slots=True)
class PathRank:
    """What a path says about its rank: one of three numbers, named by `kind`, or a place in the mesh."""

    kind: str
    """`rank`, `device`, `pid` or `mesh`."""
    number: int
    """Of `mesh`: 0."""
    place: tuple[int, ...] = ()
    """Of `mesh`: its numbers along the axes, the slowest first."""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self | None:
        """Return the first of the numbers that the fields of a pattern have, or None."""
        for kind in ("rank", "device", "pid"):
            if kind in fields:
                return cls(kind, int(fields[kind]))
        if fields.keys().isdisjoint(MESH_FIELDS):
            return None
        return cls("mesh", 0, tuple(int(fields.get(name, "0")) for name in MESH_FIELDS))


def _mesh_sizes(path_ranks: Sequence[PathRank | None]) -> list[int]:
    """Return the size of each dimension of the mesh, as far as paths name places on it."""
    places = [rank.place for rank in path_ranks if rank is not None and rank.kind == "mesh"]
    return [max(numbers) + 1 for numbers in zip(*places, strict=True)]


def _is_single_process(path_ranks: Sequence[PathRank | None]) -> bool:
    """Return whether only one process has its id in the path: then the job has only this process."""
    pids = {rank.number for rank in path_ranks if rank is not None and rank.kind == "pid"}
    return len(pids) == 1 and all(rank is None or rank.kind == "pid" for rank in path_ranks)


class Ranks:
    """The ranks of one dump."""

    def __init__(
        self, path_ranks: Sequence[PathRank | None], rank_map: Mapping[int, int], tables: Iterable[bytes]
    ) -> None:
        """Resolve the ranks of all places.

        Args:
            path_ranks: what the paths of all places say.
            rank_map: ranks by device id, from the user.
            tables: the content of rank tables in the dump.
        """
        self.problems: list[Problem] = []
        self._map = rank_map
        # Each rank may have a copy of the table of all ranks.
        entries = [entry for table in dict.fromkeys(tables) for entry in _parse(table)]
        self._table = _merge(entries, self.problems)
        self.expected: int | None = len({rank for _, rank in entries}) or None
        """How many ranks the tables name, on all hosts; None without a table."""
        self._is_single = _is_single_process(path_ranks)
        self._mesh_sizes = _mesh_sizes(path_ranks)
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
