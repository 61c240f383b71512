"""The Dask tasks that write the cubes: `consolidate` adds one step of some ranks to them.

It reads the index and the statistics of each rank, aligns them along the axis of tensors, writes the objects
that belong to this step alone, and returns what belongs to objects of several steps. `cut_by_tensor` writes a
cube of a full block of steps again, cut along the tensors. Neither makes anything visible: the consolidator
writes the metadata of the cubes afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import NON_FINITE_FIELDS, of_all_tensors
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import commit, tables
from workers.store.commit import Commit
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey, block_of
from workers.store.consolidated.cubes import (
    GROUP,
    TOTALS,
    CubeGrid,
    CubeLayouts,
    SketchedRows,
    read_axis,
    sketched_rows,
)
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.store.sketches import HISTOGRAM_TABLE
from workers.store.tables import Tables


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the cubes that a task writes."""

    place: int
    """Of the step."""
    rank_chunk: int
    members: Mapping[int, int]
    """By rank: its place within the chunk."""


def write_sketches(
    objects: ObjectStore,
    layouts: CubeLayouts,
    part: Part,
    block: Block,
    steps: Mapping[int, tuple[Commit, Tables]],
) -> dict[int, tuple[int, ...]]:
    """Write the object of `sketches` for a part; return by rank the values of `SKETCH_TOTALS`.

    If no tensor has a histogram, no object is left there.

    Args:
        objects: the store.
        cubes: the layouts.
        part: what is written.
        block: all tensors of the step, by rank and place on the axis.
        steps: by rank, its commit and its index.

    Raises:
        StoreError: the store refused.
    """
    layout = layouts.sketches
    sketched = _read_sketches(objects, steps)
    has_any = any(len(rank.rows) for rank in sketched.values())
    keys = {
        start: f"{GROUP}/{layout.key((part.place, 0, 0, part.rank_chunk, number))}"
        for number, start in enumerate(range(0, block.row.shape[1], layout.chunk[-1]))
    }
    if has_any:
        for start, key in keys.items():
            objects.put(key, _encoded_sketches(layout, part, block, sketched, start))
    else:
        # The step may have had some before it was dumped again.
        objects.delete_many(list(keys.values()))
    return {rank: (len(rows.rows), rows.without) for rank, rows in sketched.items()}


def _read_sketches(
    objects: ObjectStore, steps: Mapping[int, tuple[Commit, Tables]]
) -> dict[int, SketchedRows]:
    """Return by rank what the cubes hold; histograms that are damaged count as missing."""
    table = HISTOGRAM_TABLE
    keys = {
        rank: f"{committed.prefix}/{table.chunk}"
        for rank, (committed, _) in steps.items()
        if table.path in committed.nodes
    }
    chunks = objects.get_many(list(keys.values())) if keys else {}
    sketched = {}
    for rank, (committed, index) in steps.items():
        entries = table.empty()
        if rank in keys:
            chunk, checksums = chunks.get(keys[rank]), committed.record.checksums
            with suppress(DamagedStore):  # `verify` tells; a question that needs them asks the step
                entries = table.decode(committed.nodes[table.path], chunk, str(committed.key), checksums)
        sketched[rank] = sketched_rows(index, entries)
    return sketched


def _encoded_sketches(
    layout: ArrayLayout, part: Part, block: Block, sketched: Mapping[int, SketchedRows], start: int
) -> bytes:
    """Return the object that holds the tensors from one place of the axis."""
    whole = layout.full()
    width = whole.shape[-1]
    for number, rank in enumerate(block.ranks):
        rows, places = block.row[number], part.members[rank]
        tensors = np.flatnonzero(rows[start : start + width] >= 0)
        of_rank = sketched[rank]
        where = np.full(int(rows.max(initial=-1)) + 1, -1, np.int64)
        known = of_rank.rows < len(where)
        where[of_rank.rows[known]] = of_rank.of_row[known]
        held = where[rows[start + tensors]]
        has = held >= 0
        # (tensor, sketch, bound) becomes (sketch, bound, tensor)
        whole[0, :, :, places, tensors[has]] = of_rank.values[held[has]]
    return layout.encode(whole)


@dataclass(frozen=True, slots=True)
class ConsolidateJob:
    """One step of the ranks of one chunk of the rank axis.

    Memory of the task: 116 bytes for each of these ranks and each tensor of the axis, twice; with
    histograms, 304 bytes for each distinct tensor of each rank, and 80 MB.
    """

    store: StoreAddress
    writer: str
    """Names the consolidator: the axis of another one may have different tensors at its end."""
    grid: CubeGrid
    width: int
    """How many tensors the axis has in the store."""
    step: int
    place: int
    """Place of the step on the axis of steps."""
    rank_chunk: int
    members: tuple[tuple[int, int], ...]
    """Ranks, and the place of each within the chunk."""
    extends: bool = False
    """Whether it puts tensors that are not on the axis at its end: if no other task runs."""


@dataclass(frozen=True, slots=True)
class UnknownTensors:
    """The step has tensors that are not on the axis, so nothing was written."""

    job: ConsolidateJob
    keys: tuple[TensorKey, ...]
    """In order of execution."""


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The objects of this step are written."""

    job: ConsolidateJob
    fingerprints: dict[int, str]
    """By rank: the generation that was read. Ranks whose commit is gone or damaged are left out."""
    statuses: dict[int, str]
    totals: dict[int, tuple[int, ...]]
    """By rank, in the order of the tables of the cubes."""
    anomalies: npt.NDArray[np.int64]
    """(NON_FINITE_FIELDS, rank of the chunk, tensor); -1 for tensors that a rank does not have."""
    damaged: dict[int, str]
    """By rank: what is damaged."""
    aggregates: dict[int, npt.NDArray[np.float64]]
    """By rank, as `fingerprints`: each of `STATISTICS` of all tensors together."""
    keys: tuple[TensorKey, ...] = ()
    """The tensors that the task has put at the end of the axis."""


ConsolidateResult: TypeAlias = UnknownTensors | Consolidated


def consolidate(job: ConsolidateJob) -> ConsolidateResult:
    """Write the objects of one step that belong to no other step. Safe to run again.

    Raises:
        StoreError: the store refused.
    """
    objects = open_objects(job.store)
    axis = _axis(job)
    commits, damaged_commits = _read_commits(objects, job)
    tables_of, damaged_tables = _read_tables(objects, commits)
    known = TensorAxis(axis.keys) if len(axis) else TensorAxis()
    block = block_of(job.step, tables_of, known)
    unknown = tuple(known.keys[job.width :])
    if unknown and not job.extends:
        return UnknownTensors(job, unknown)
    job = replace(job, width=len(known))
    layouts = CubeLayouts(job.grid)
    anomalies = _write_cubes(job, block, layouts, objects)
    sketch_totals = write_sketches(
        objects,
        layouts,
        Part(job.place, job.rank_chunk, dict(job.members)),
        block,
        {rank: (commits[rank], tables_of[rank]) for rank in tables_of},
    )
    return Consolidated(
        job=job,
        fingerprints={rank: commits[rank].fingerprint for rank in tables_of},
        statuses={rank: commits[rank].summary.status for rank in tables_of},
        totals={
            rank: (*(getattr(commits[rank].summary, name) for name in TOTALS), *sketch_totals[rank])
            for rank in tables_of
        },
        anomalies=anomalies,
        damaged=damaged_commits | damaged_tables,
        aggregates=dict(zip(block.ranks, of_all_tensors(block.statistic, len(block.ranks)), strict=True)),
        keys=unknown,
    )


def _read_commits(objects: ObjectStore, job: ConsolidateJob) -> tuple[dict[int, Commit], dict[int, str]]:
    """Return the commits by rank, and the damage of those that cannot be read."""
    commits, damaged = commit.read_many(objects, [StepKey(rank, job.step) for rank, _ in job.members])
    return (
        {key.rank: current for key, current in commits.items()},
        {key.rank: reason for key, reason in damaged.items()},
    )


def _read_tables(
    objects: ObjectStore, commits: dict[int, Commit]
) -> tuple[dict[int, Tables], dict[int, str]]:
    """Return the tables by rank, and the damage of those that cannot be read."""
    names = {
        f"{current.prefix}/{key}": (rank, key)
        for rank, current in commits.items()
        for key in tables.chunk_keys()
    }
    chunks: dict[int, dict[str, bytes]] = {}
    for name, data in objects.get_many(list(names)).items():
        rank, key = names[name]
        chunks.setdefault(rank, {})[key] = data
    tables_of: dict[int, Tables] = {}
    damaged: dict[int, str] = {}
    for rank, current in commits.items():
        try:
            nodes, where = current.packed_nodes, str(current.key)
            decoded = tables.decode(nodes, chunks.pop(rank, {}), where, current.record.checksums)
            has_tensors = current.without_tensors is None
            tables_of[rank] = tables.check(decoded, nodes, where, has_tensors=has_tensors)
        except DamagedStore as exc:
            damaged[rank] = exc.message
    return tables_of, damaged


def _write_cubes(
    job: ConsolidateJob, block: Block, layouts: CubeLayouts, objects: ObjectStore
) -> npt.NDArray[np.int64]:
    """Write the objects of this step, and return the counts that share objects with other steps."""
    places = dict(job.members)
    into = [places[rank] for rank in block.ranks]
    ranks, width = job.grid.ranks, job.width
    block = block.widened(width)
    written: dict[str, bytes] = {}
    for name, layout in layouts.per_step.items():
        if name == "row":
            values: npt.NDArray[np.generic] = block.row
        elif name == "digest":
            values = block.digest
        else:
            values = block.statistic(name)
            if layout.data_type == "int64":
                values = _as_counts(block.statistic(name))
        whole = np.full((1, ranks, width, *values.shape[2:]), layout.fill, layout.dtype)
        whole[0, into] = values
        for chunk, start in enumerate(range(0, width, job.grid.tensors)):
            index = (job.place, job.rank_chunk, chunk, *([0] * (whole.ndim - 3)))
            part = whole[:, :, start : start + job.grid.tensors]
            written[f"{GROUP}/{layout.key(index)}"] = layout.encode(part)
    objects.put_many(written)
    anomalies = np.full((len(NON_FINITE_FIELDS), ranks, width), -1, np.int64)
    for number, name in enumerate(NON_FINITE_FIELDS):
        anomalies[number, into] = _as_counts(block.statistic(name))
    return anomalies


def _as_counts(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return counts as integers; -1 for unknown ones."""
    return np.where(np.isnan(values), -1, values).astype(np.int64)


_AXES: dict[tuple[StoreAddress, str], TensorAxis] = {}
_AXES_LOCK = threading.Lock()


def _axis(job: ConsolidateJob) -> TensorAxis:
    """Return the axis of tensors in the store. Read once in each process, and again after it has grown."""
    with _AXES_LOCK:
        key = (job.store, job.writer)
        axis = _AXES.get(key)
        if axis is None or len(axis) < job.width:
            axis = read_axis(open_objects(job.store), CubeLayouts(job.grid), job.width)
            _AXES.clear()  # the axis of one store at a time is enough
            _AXES[key] = axis
    return axis if len(axis) == job.width else TensorAxis(axis.keys[: job.width])


@dataclass(frozen=True, slots=True)
class CutJob:
    """One block of steps of one cube, for one chunk of ranks and one chunk of tensors.

    Memory of the task: 8 bytes for each cell, at most 64 MiB, and the same encoded, twice.
    """

    store: StoreAddress
    grid: CubeGrid
    name: str
    """The cube."""
    block: int
    rank_chunk: int
    tensor_chunk: int


@dataclass(frozen=True, slots=True)
class CutBlock:
    """What became of a block."""

    job: CutJob
    damage: str = ""
    """What is damaged in the objects of its steps; nothing was written then."""
    absent: tuple[int, ...] = ()
    """Places of the steps without an object, rightly or not."""


def cut_by_tensor(job: CutJob) -> CutBlock:
    """Write one cube of a block of steps as one object. Safe to run again.

    Raises:
        StoreError: the store refused.
    """
    objects, layouts = open_objects(job.store), CubeLayouts(job.grid)
    of_steps, by_tensor = layouts.per_step[job.name], layouts.by_tensor[job.name]
    steps = job.grid.steps
    places = range(job.block * steps, (job.block + 1) * steps)
    keys = [f"{GROUP}/{of_steps.key((place, job.rank_chunk, job.tensor_chunk))}" for place in places]
    contents = objects.get_many(keys)
    values = np.empty(by_tensor.chunk, by_tensor.dtype)
    try:
        for number, key in enumerate(keys):
            values[number] = of_steps.decode(contents.get(key), key)[0]
    except DamagedStore as exc:
        return CutBlock(job, exc.message)
    key = by_tensor.key((job.block, job.rank_chunk, job.tensor_chunk))
    objects.put(f"{GROUP}/{key}", by_tensor.encode(values))
    absent = (place for place, name in zip(places, keys, strict=True) if name not in contents)
    return CutBlock(job, absent=tuple(absent))
