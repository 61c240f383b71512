"""Which rank is it? The path tells, or the user, or a rank table; else it is the id of the device.

The rank table of Ascend clusters (`hccl.json`): `server_list[].device[]` with `device_id` and `rank_id`, as
text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ingest.layouts.base import Problem

#: The most ranks that a table may give.
_MAX_RANKS = 1_000_000


@dataclass(frozen=True, slots=True)
class RankOf:
    """What a path tells about its rank: one of three numbers, named by `kind`."""

    kind: str
    """`rank`, `device` or `pid`."""
    number: int

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self | None:
        """Return what the fields of a pattern tell, or None."""
        for kind in ("rank", "device", "pid"):
            if kind in fields:
                return cls(kind, int(fields[kind]))
        return None


class Ranks:
    """The ranks of one dump."""

    def __init__(
        self, found: Sequence[RankOf | None], rank_map: Mapping[int, int], tables: Sequence[bytes]
    ) -> None:
        """Take what is known.

        Args:
            found: what the paths of all places tell.
            rank_map: device ids and their ranks, by the user.
            tables: rank tables found in the dump.
        """
        self.problems: list[Problem] = []
        self._map = rank_map
        self._table = _merge(tables, self.problems)
        pids = {one.number for one in found if one is not None and one.kind == "pid"}
        # One process whose directory carries its id is a job of one process.
        self._is_single = len(pids) == 1 and all(one is None or one.kind == "pid" for one in found)
        resolved = [self.resolve(one) for one in found]
        self._sources = dict(resolved)
        self.lowest = min((rank for rank, _ in resolved), default=None)

    def resolve(self, one: RankOf | None) -> tuple[int, str]:
        """Return the rank, and what gave it."""
        if one is None or (one.kind == "pid" and self._is_single):
            return 0, "single process"
        if one.kind == "rank":
            return one.number, "path"
        if one.kind == "pid":
            return one.number, "process id"
        if one.number in self._map:
            return self._map[one.number], "rank map"
        if one.number in self._table:
            return self._table[one.number], "rank table"
        return one.number, "device id"

    def source(self, rank: int) -> str:
        """Return what gave a rank."""
        return self._sources.get(rank, "path")


def _merge(tables: Sequence[bytes], problems: list[Problem]) -> dict[int, int]:
    ranks: dict[int, set[int]] = {}
    for data in tables:
        for device, rank in _parse(data):
            ranks.setdefault(device, set()).add(rank)
    unclear = sorted(device for device, found in ranks.items() if len(found) > 1)
    if unclear:
        problems.append(
            Problem(
                "hccl.json",
                f"gives several ranks for device {unclear[0]}: it covers several hosts",
                "Say which ranks are on this host: --rank-map 0=8,1=9.",
            )
        )
    return {device: found.pop() for device, found in ranks.items() if len(found) == 1}


def _parse(data: bytes) -> list[tuple[int, int]]:
    try:
        devices = [
            (int(device["device_id"]), int(device["rank_id"]))
            for server in json.loads(data)["server_list"]
            for device in server["device"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # no rank table, though it is called like one
    return [(device, rank) for device, rank in devices[:_MAX_RANKS] if device >= 0 and 0 <= rank < _MAX_RANKS]
