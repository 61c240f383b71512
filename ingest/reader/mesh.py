"""Where a rank is in the mesh of its job: its rank and the size along each axis of parallelism.

Ranks are replicas of one another if they are at the same place of every axis but that of data parallelism. A
user may say where ranks are, or the dump tells, in its index:

    meta.tp_rank, meta.megatron_parallel_info.tp_rank, ...  SGLang's dumper, in each file
    TP0_PP1_Rank2_pid4711/, tp_rank_0/, ___tp_rank=0___     names of directories and files
    mp_rank_00_001/, zero_pp_rank_1_mp_rank_00_optim_...    those of Megatron and DeepSpeed
    rank_1.tp_rank_1_of_2/                                  directories of our own recorder
    tensor.mesh_dim_names and tensor.mesh_coordinate        each DTensor (`torch/distributed/device_mesh.py`)

The first that tells of an axis counts, in this order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np

from ingest.reader.choice import format_ranges
from workers.errors import DamagedStore, UsageError
from workers.model import grouped
from workers.store.tables import Tables, record_of

if TYPE_CHECKING:
    from ingest.reader.step import Step


#: Tensor, pipeline, data, context, expert and sequence parallelism; the two parts of `dp` with FSDP; the axes
#: of experts in Megatron, and of attention and experts in SGLang.
AXES = (
    *("tp", "pp", "dp", "cp", "ep", "sp", "dp_replicate", "dp_shard", "etp", "edp"),
    *("attn_tp", "attn_dp", "attn_cp", "moe_tp", "moe_ep", "moe_dp"),
)
#: Axes along which ranks are replicas.
REPLICATED = frozenset(["dp", "dp_replicate", "edp", "attn_dp", "moe_dp"])
_MAX_SIZE = 1_000_000
_PAIR = re.compile(r"(?P<axis>[a-z_]+)=(?P<number>\d{1,7})")
_EXAMPLE = "For example: --mesh tp=2,dp=4 (the last axis varies fastest: rank 1 is tp 0, dp 1)."
#: Layouts that can tell coordinates. The indexes of others need not be read for them.
_TELLING_LAYOUTS = frozenset(
    [
        *("sglang", "forward_hooks", "transformer_engine", "tensorrt_llm", "vllm", "recorder", "declared"),
        *("deepspeed", "megatron"),
    ]
)
#: Rows that are looked at: all files of a rank say the same.
_MAX_ROWS = 64
#: How deep in `meta` the ranks are: `meta.megatron_parallel_info.tp_rank`.
_MAX_DEPTH = 3
#: Indexes that are read at once.
_AT_ONCE = 4
_AXIS = "|".join(sorted(AXES, key=len, reverse=True))
_BEFORE_RANK = re.compile(r"(?:^|/)((?:(?:TP|PP|DP|CP|EP|SP)\d{1,7}_)+)Rank\d+_")
_SHORT = re.compile(r"([A-Z]{2})(\d{1,7})_")
#: `pp` means partitions there.
_OF_ZERO = re.compile(r"(?:^|[/_])zero_pp_rank_(\d{1,7})(?=_)")
_OF_MODEL = re.compile(r"(?:^|[/_])mp_rank_(\d{2,7})(?:_(\d{3,7})(?:_(\d{3,7}))?)?(?=[/_])")
_SPELLED = re.compile(rf"(?:^|(?<!zero)[/_.-])({_AXIS})_rank[=_]?(\d{{1,7}})(?:_of_(\d{{1,7}}))?(?=[/_.-]|$)")


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


def replica_groups(coordinates: Mapping[int, Coordinates]) -> list[list[int]]:
    """Return the ranks that are replicas of one another; none unless the place of every rank is known.

    Args:
        coordinates: by rank.
    """
    if not all(coordinates.values()):
        return []
    groups = grouped(
        (tuple((axis, place.rank) for axis, place in places.items() if axis not in REPLICATED), rank)
        for rank, places in coordinates.items()
    )
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


def coordinates_of_steps(steps: Sequence[Step]) -> dict[int, Coordinates]:
    """Return by rank where it is; empty if its step does not tell, or is damaged.

    Reads the index of each step whose layout can tell, and does not keep it.

    Args:
        steps: one of each rank.
    """

    def told(step: Step) -> Coordinates:
        if _TELLING_LAYOUTS.isdisjoint(step.commit.record.source.layout.split("+")):
            return {}
        try:
            return told_coordinates(type(step)(step.objects, step.commit).tables)
        except DamagedStore:  # whoever asks about its tensors names it
            return {}

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dump-ingest-read") as threads:
        return dict(zip((step.key.rank for step in steps), threads.map(told, steps), strict=True))


def told_coordinates(tables: Tables) -> Coordinates:
    """Return where the rank of a step is, as its files tell; empty if they do not.

    Args:
        tables: the index of one of its steps.
    """
    rows = np.flatnonzero(tables.label("record") != "")[:_MAX_ROWS].tolist()
    records = [record_of(tables, row) for row in rows]
    # What the numbers in `mp_rank_00_001` are: Megatron leaves out that of a single stage.
    axes: tuple[str, ...] = ("tp", "pp", "ep")
    for record in records:
        match record:
            case {"file": {"args": {"pipeline_model_parallel_size": 1}}}:
                axes = ("tp", "ep")
    places: dict[str, Coordinate] = {}
    for told in (
        *(_in_values(record.get("file"), 0) for record in records),
        *(_in_name(source, axes) for source in dict.fromkeys(tables.label("source")[:_MAX_ROWS].tolist())),
        *(_in_device_mesh(record.get("tensor")) for record in records),
    ):
        for axis, coordinate in told:
            places.setdefault(axis, coordinate)
    return ordered(places)


def _in_values(values: Any, depth: int) -> Iterator[tuple[str, Coordinate]]:
    if not isinstance(values, Mapping) or depth > _MAX_DEPTH:
        return
    for axis in AXES:
        if (rank := _number(values.get(f"{axis}_rank"))) is not None:
            yield axis, Coordinate(rank, _number(values.get(f"{axis}_size")))
    for value in values.values():
        yield from _in_values(value, depth + 1)


def _in_name(path: str, axes_of_model: tuple[str, ...]) -> Iterator[tuple[str, Coordinate]]:
    """Yield the coordinates in the path of a file.

    Args:
        path: the path.
        axes_of_model: the axes that the numbers behind `mp_rank` belong to.
    """
    for levels in _BEFORE_RANK.findall(path):
        for axis, rank in _SHORT.findall(levels):
            yield axis.lower(), Coordinate(int(rank))
    for rank in _OF_ZERO.findall(path):
        yield "dp", Coordinate(int(rank))
    for ranks in _OF_MODEL.findall(path):
        for axis, rank in zip(axes_of_model, ranks, strict=False):
            if rank:
                yield axis, Coordinate(int(rank))
    for axis, rank, size in _SPELLED.findall(path):
        yield axis, Coordinate(int(rank), int(size) if size else None)


def _in_device_mesh(tensor: Any) -> Iterator[tuple[str, Coordinate]]:
    if not isinstance(tensor, Mapping):
        return
    names, places = tensor.get("mesh_dim_names"), tensor.get("mesh_coordinate")
    if not isinstance(names, list) or not isinstance(places, list) or len(names) != len(places):
        return
    ranks = tensor.get("mesh_ranks")
    size = len(ranks) if isinstance(ranks, list) and len(names) == 1 else None
    for name, place in zip(names, places, strict=True):
        if name in AXES and (rank := _number(place)) is not None:
            yield name, Coordinate(rank, size)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
