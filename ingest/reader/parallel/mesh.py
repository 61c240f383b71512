"""Where a rank is in the mesh of its job: its rank and the size along each axis of parallelism.

Ranks are replicas of one another if they are at the same place of every axis but that of data parallelism.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from ingest.reader.ranges import format_ranges
from workers.errors import UsageError

#: Tensor, pipeline, data, context, expert and sequence parallelism; the two parts of `dp` with FSDP; the axes
#: of experts in Megatron, and of attention and experts in SGLang.
AXES = (
    *("tp", "pp", "dp", "cp", "ep", "sp", "dp_replicate", "dp_shard", "etp", "edp"),
    *("attn_tp", "attn_dp", "attn_cp", "moe_tp", "moe_ep", "moe_dp"),
)
#: Axes along which ranks are replicas.
_REPLICATED = frozenset(["dp", "dp_replicate", "edp", "attn_dp", "moe_dp"])
_MAX_SIZE = 1_000_000
_PAIR = re.compile(r"(?P<axis>[a-z_]+)=(?P<number>\d{1,7})")
_EXAMPLE = "For example: --mesh tp=2,dp=4 (the last axis varies fastest: rank 1 is tp 0, dp 1)."


class Coordinate(NamedTuple):
    """The place of a rank along one axis."""

    rank: int
    size: int | None = None
    """How many places the axis has; None if it is not known."""

    def __str__(self) -> str:
        return f"{self.rank}" if self.size is None else f"{self.rank}/{self.size}"


Coordinates: TypeAlias = Mapping[str, Coordinate]
"""The place of a rank by axis, in the order of `AXES`; empty if nothing is known."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """How the ranks of a job are laid out, as a user tells it."""

    axes: tuple[tuple[str, int], ...]
    """Name and size of each axis; the last one varies fastest."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `tp=2,dp=4`.

        Raises:
            UsageError: it is not a mesh.
        """
        try:
            axes = tuple(_pairs(text).items())
        except ValueError as exc:
            raise UsageError(f"--mesh {text}: {exc}", hint=_EXAMPLE) from None
        if any(size < 1 for _, size in axes) or math.prod(size for _, size in axes) > _MAX_SIZE:
            raise UsageError(f"--mesh {text}: sizes are from 1, a million ranks at most", hint=_EXAMPLE)
        return cls(axes)

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return math.prod(size for _, size in self.axes)

    def coordinates(self, rank: int) -> Coordinates:
        """Return the place of a rank.

        Raises:
            UsageError: the mesh has fewer ranks.
        """
        if rank >= self.size:
            raise UsageError(
                f"--mesh {self}: has {self.size} ranks, and the store has rank {rank}",
                hint="Name all axes of the job, those of size 1 excepted.",
            )
        places: dict[str, Coordinate] = {}
        for axis, count in reversed(self.axes):
            rank, place = divmod(rank, count)
            places[axis] = Coordinate(place, count)
        return ordered(places)

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in self.axes)


def ordered(places: Mapping[str, Coordinate]) -> Coordinates:
    """Return coordinates in the order of `AXES`, and no other axes."""
    return {axis: places[axis] for axis in AXES if axis in places}


def format_coordinates(coordinates: Coordinates) -> str:
    """Return them as text: `tp 0/2, dp 3/4`. An axis of size 1 tells nothing, and is left out."""
    return ", ".join(f"{axis} {place}" for axis, place in coordinates.items() if place.size != 1)


def parse_place(text: str) -> Mapping[str, int]:
    """Read a place of one axis or several: `tp=0`, `tp=0,dp=1`.

    Raises:
        UsageError: it is neither that nor a rank.
    """
    try:
        return _pairs(text)
    except ValueError as exc:
        raise UsageError(
            f"{text!r:.80} is not a rank: {exc}", hint="For example: 3, or tp=0, or tp=0,dp=1."
        ) from None


def is_at(coordinates: Coordinates, place: Mapping[str, int]) -> bool:
    """Return whether a rank with these coordinates is at a place."""
    return all(axis in coordinates and coordinates[axis].rank == rank for axis, rank in place.items())


def replica_groups(coordinates: Mapping[int, Coordinates]) -> list[list[int]]:
    """Return the ranks that are replicas of one another; none unless the place of every rank is known.

    Args:
        coordinates: by rank.
    """
    if not all(coordinates.values()):
        return []
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank, places in coordinates.items():
        key = tuple((axis, place.rank) for axis, place in places.items() if axis not in _REPLICATED)
        groups.setdefault(key, []).append(rank)
    return sorted(sorted(ranks) for ranks in groups.values() if len(ranks) > 1)


def describe_places(coordinates: Iterable[Coordinates]) -> str:
    """Describe the places of ranks along each axis: `tp 0-1; dp 0, 3`; "" if none is known."""
    places: dict[str, set[int]] = {}
    for of_rank in coordinates:
        for axis, place in of_rank.items():
            places.setdefault(axis, set()).add(place.rank)
    return "; ".join(f"{axis} {format_ranges(places[axis])}" for axis in AXES if axis in places)


def _pairs(text: str) -> dict[str, int]:
    """Read `axis=number` pairs.

    Raises:
        ValueError: what is wrong with them.
    """
    pairs: dict[str, int] = {}
    for part in text.split(","):
        match = _PAIR.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r:.40} is not axis=number")
        axis = match["axis"]
        if axis not in AXES:
            raise ValueError(f"{axis!r} is not an axis; axes: {', '.join(AXES)}")
        if axis in pairs:
            raise ValueError(f"{axis} is given twice")
        pairs[axis] = int(match["number"])
    return pairs
