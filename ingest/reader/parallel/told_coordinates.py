"""What a dump tells about the place of its ranks in the mesh of the job: nothing but the index is read.

    meta.tp_rank, meta.megatron_parallel_info.tp_rank, ...  SGLang's dumper, in each file
    TP0_PP1_Rank2_pid4711/, tp_rank_0/, ___tp_rank=0___     names of directories and files
    mp_rank_00_001/, zero_pp_rank_1_mp_rank_00_optim_...    those of Megatron and DeepSpeed
    rank_1.tp_rank_1_of_2/                                  directories of our own recorder
    tensor.mesh_dim_names and tensor.mesh_coordinate        each DTensor (`torch/distributed/device_mesh.py`)

The first that tells of an axis counts, in this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ingest.reader.indexed_step import IndexedStep
from ingest.reader.parallel.mesh import AXES, Coordinate, Coordinates, ordered
from workers.errors import DamagedStore
from workers.store.tables import Tables, record_of

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


def coordinates_of_steps(steps: Sequence[IndexedStep]) -> dict[int, Coordinates]:
    """Return by rank where it is; empty if its step does not tell, or is damaged.

    Reads the index of each step whose layout can tell, and does not keep it.

    Args:
        steps: one of each rank.
    """
    telling = [step for step in steps if can_tell(step)]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dump-ingest-read") as threads:
        told = dict(zip((step.key.rank for step in telling), threads.map(_of_step, telling), strict=True))
    return {step.key.rank: told.get(step.key.rank, {}) for step in steps}


def can_tell(step: IndexedStep) -> bool:
    """Return whether a step comes from a kind of dump that can tell where its rank is."""
    return not _TELLING_LAYOUTS.isdisjoint(step.commit.record.source.layout.split("+"))


def _of_step(step: IndexedStep) -> Coordinates:
    try:
        return told_coordinates(IndexedStep(step.objects, step.commit).tables)
    except DamagedStore:  # whoever asks about its tensors names it
        return {}


def told_coordinates(tables: Tables) -> Coordinates:
    """Return where the rank of a step is, as its files tell; empty if they do not.

    Args:
        tables: the index of one of its steps.
    """
    rows = np.flatnonzero(tables.label("record") != "")[:_MAX_ROWS].tolist()
    records = [record_of(tables, row) for row in rows]
    sources = dict.fromkeys(tables.label("source")[:_MAX_ROWS].tolist())
    axes = _axes_of_model(records)
    places: dict[str, Coordinate] = {}
    for told in (
        *(_in_values(record.get("file"), 0) for record in records),
        *(_in_name(source, axes) for source in sources),
        *(_in_device_mesh(record.get("tensor")) for record in records),
    ):
        for axis, coordinate in told:
            places.setdefault(axis, coordinate)
    return ordered(places)


def _in_values(values: Any, depth: int) -> Iterator[tuple[str, Coordinate]]:
    """Yield the coordinates that a dictionary gives by `tp_rank` and `tp_size`, then those in its values."""
    if not isinstance(values, Mapping) or depth > _MAX_DEPTH:
        return
    for axis in AXES:
        if (rank := _number(values.get(f"{axis}_rank"))) is not None:
            yield axis, Coordinate(rank, _number(values.get(f"{axis}_size")))
    for value in values.values():
        yield from _in_values(value, depth + 1)


def _axes_of_model(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what the numbers in `mp_rank_00_001` are: Megatron leaves out that of a single stage."""
    for record in records:
        match record:
            case {"file": {"args": {"pipeline_model_parallel_size": 1}}}:
                return "tp", "ep"
    return "tp", "pp", "ep"


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
    """Yield the coordinates of a DTensor: its rank along the axes of its mesh that have names."""
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
