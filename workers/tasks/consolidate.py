"""The Dask tasks that write the cubes: `consolidate` adds one step of some ranks to them.

It reads the index and the statistics of each rank, aligns them along the axis of tensors, writes the objects
that belong to this step alone, and returns what belongs to objects of several steps. `cut_by_tensor` writes a
cube of a full block of steps again, cut along the tensors. Neither makes anything visible: the consolidator
writes the metadata of the cubes afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.digest import SMALL_NBYTES, RunningBlockDigests
from workers.arrays.marginals import MarginalTable
from workers.arrays.statistics import NON_FINITE_FIELDS, of_all_tensors
from workers.errors import DamagedStore, StepRemoved, TensorsRemoved
from workers.model import MIB, StepKey
from workers.store import commit, metadata, tables
from workers.store.commit import Commit, extend
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
from workers.store.model import RowKind, StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.store.sketches import (
    ALL_MARGINALS,
    BLOCK_TABLE,
    HISTOGRAM_TABLE,
    MarginalArrays,
    StepMarginals,
    counted_rows,
    distinct_payloads,
    distinct_tensors,
    has_all_sketches,
    rows_with_marginals,
)
from workers.store.step import RecomputedStatistics, StoredStep
from workers.store.tables import Tables


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
    steps = {rank: (commits[rank], tables_of[rank]) for rank in tables_of}
    sketch_totals = _write_sketches(objects, layouts, job, block, steps)
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
    commits, damaged = commit.read_many(objects, [StepKey(rank, job.step) for rank, _ in job.members])
    return (
        {key.rank: current for key, current in commits.items()},
        {key.rank: reason for key, reason in damaged.items()},
    )


def _read_tables(
    objects: ObjectStore, commits: dict[int, Commit]
) -> tuple[dict[int, Tables], dict[int, str]]:
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
    return np.where(np.isnan(values), -1, values).astype(np.int64)


def _write_sketches(
    objects: ObjectStore,
    layouts: CubeLayouts,
    job: ConsolidateJob,
    block: Block,
    steps: Mapping[int, tuple[Commit, Tables]],
) -> dict[int, tuple[int, ...]]:
    """Write the object of `sketches` for a job; return by rank the values of `SKETCH_TOTALS`.

    If no tensor has a histogram, no object is left there.

    Args:
        objects: the store.
        layouts: of the cubes.
        job: which part is written.
        block: all tensors of the step, by rank and place on the axis.
        steps: by rank, its commit and its index.

    Raises:
        StoreError: the store refused.
    """
    layout = layouts.sketches
    sketched = _read_sketches(objects, steps)
    has_any = any(len(rank.rows) for rank in sketched.values())
    keys = {
        start: f"{GROUP}/{layout.key((job.place, 0, 0, job.rank_chunk, number))}"
        for number, start in enumerate(range(0, block.row.shape[1], layout.chunk[-1]))
    }
    if has_any:
        for start, key in keys.items():
            objects.put(key, _encoded_sketches(layout, dict(job.members), block, sketched, start))
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
    contents = objects.get_many(list(keys.values()))
    sketched = {}
    for rank, (committed, index) in steps.items():
        entries: npt.NDArray[np.int64] | None = table.empty()
        if rank in keys:
            entries = None
            chunks = {table.chunk: contents[keys[rank]]} if keys[rank] in contents else {}
            with suppress(DamagedStore):  # `verify` tells; a question that needs them asks the step
                entries = table.decode(
                    committed.nodes, chunks, str(committed.key), committed.record.checksums
                )
        sketched[rank] = sketched_rows(index, entries)
    return sketched


def _encoded_sketches(
    layout: ArrayLayout,
    members: Mapping[int, int],
    block: Block,
    sketched: Mapping[int, SketchedRows],
    start: int,
) -> bytes:
    whole = layout.full()
    width = whole.shape[-1]
    for number, rank in enumerate(block.ranks):
        rows, places = block.row[number], members[rank]
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


_PIECE_NBYTES = 16 * MIB
HAS_SKETCHES = "it has sketches"


@dataclass(frozen=True, slots=True)
class SketchJob:
    """One step of one rank to add sketches to."""

    store: StoreAddress
    key: StepKey


@dataclass(frozen=True, slots=True)
class Sketched:
    """What became of it."""

    key: StepKey
    tensors: int = 0
    """How many distinct tensors have a histogram now; tensors of only zeros need none."""
    left: str = ""
    """Why the step was not changed; "" if it was."""


def sketch(job: SketchJob) -> Sketched:
    """Add the sketches of its tensors to a step, unless it has them.

    Memory: the index of the step, the sketches, and what `StoredStep.payloads` takes.

    Raises:
        StoreError: the store refused. The step is as it was.
    """
    objects = open_objects(job.store)
    try:
        present = commit.read(objects, job.key)
        if present is None:
            return Sketched(job.key, left="it was removed")
        if has_all_sketches(present.nodes):
            return Sketched(job.key, left=HAS_SKETCHES)
        if present.without_tensors is not None:
            return Sketched(job.key, left=str(present.without_tensors))
        sketches = sketches_of(StoredStep(objects, present))
    except (DamagedStore, StepRemoved, TensorsRemoved) as exc:
        return Sketched(job.key, left=exc.message)
    documents = {path: node for path, node in sketches.documents.items() if path not in present.nodes}
    chunks = {key: data for key, data in sketches.chunks.items() if key.partition("/c/")[0] in documents}
    if not extend(objects, present, documents, chunks):
        return Sketched(job.key, left="it was committed again, or removed, meanwhile")
    return Sketched(job.key, tensors=sketches.tensors)


@dataclass(frozen=True, slots=True)
class Sketches:
    """The tables of the sketches of a step, encoded."""

    tensors: int
    documents: dict[str, metadata.Document] = field(default_factory=dict)
    """Metadata of the tables that have entries, by path in the generation."""
    chunks: dict[str, bytes] = field(default_factory=dict)
    """Their chunks, by path in the generation."""


def sketches_of(step: StoredStep, wanted: Sequence[MarginalArrays] = (ALL_MARGINALS,)) -> Sketches:
    """Return the sketches of a step, computed from its payloads.

    Args:
        step: the step.
        wanted: which arrays of marginals are made.

    Raises:
        DamagedStore: the index or a payload is damaged.
        StepRemoved, TensorsRemoved: they were removed since the step was opened.
    """
    table = step.tables
    counted = set(distinct_tensors(counted_rows(table), table))
    is_large = (table.label("kind") == RowKind.TENSOR.value) & (table.number("nbytes") > SMALL_NBYTES)
    large = set(distinct_payloads(np.flatnonzero(is_large).tolist(), table))
    is_stored = (table.number("size") > 0) & (table.number("offset") >= 0)
    scopes = {arrays: counted.intersection(rows_with_marginals(table, arrays.scope)) for arrays in wanted}
    summed = set(chain.from_iterable(scopes.values()))
    rows = [row for row in sorted(counted | large) if is_stored[row]]
    of_axes: dict[int, MarginalTable] = {}
    bins: dict[int, npt.NDArray[np.int64]] = {}
    blocks: dict[int, npt.NDArray[np.int64]] = {}
    for row, pieces in step.payloads(rows, _PIECE_NBYTES):
        recomputed = RecomputedStatistics(step, row, with_histogram=True, with_marginals=row in summed)
        running = RunningBlockDigests()
        for piece in pieces:
            if row in counted:
                recomputed.update(piece)
            if row in large:
                running.update(memoryview(piece))
        if row in counted and len(of_row := recomputed.histogram_rows()):
            bins[row] = of_row
        if row in summed and (of_axis := recomputed.marginals()).axes:
            of_axes[row] = of_axis
        if row in large:
            blocks[row] = running.result()[:, np.newaxis]
    made = Sketches(len(bins))
    all_rows = range(len(table.labels))
    encoded = [
        entry_table.encode(
            entry_table.joined(
                [entry_table.gathered(list(of_rows), [*map(len, of_rows.values())], list(of_rows.values()))]
            )
        )
        for entry_table, of_rows in ((HISTOGRAM_TABLE, bins), (BLOCK_TABLE, blocks))
    ]
    for arrays, rows_in_scope in scopes.items():
        in_scope = {row: of_axes[row] for row in rows_in_scope & of_axes.keys()}
        encoded.append(arrays.encode(StepMarginals.of_places(all_rows, in_scope)))
    for documents, chunks in encoded:
        made.documents.update(documents)
        made.chunks.update(chunks)
    return made
