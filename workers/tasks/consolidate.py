"""`consolidate`: what a Dask worker runs to bring one step of some ranks into the consolidated view.

Reads the index and the statistics of each rank, aligns them along the axis of tensors, writes the objects
that are of this step alone, and returns what goes into objects of several steps. Nothing becomes visible by
it: that is up to who writes the metadata of the view afterwards.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import commit, tables
from workers.store.blocks import Block, TensorAxis, TensorKey, block_of
from workers.store.commit import Commit
from workers.store.cubes import ANOMALY_FIELDS, GROUP, TOTALS, CubeGrid, Cubes, read_axis
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects
from workers.store.tables import Tables


@dataclass(frozen=True, slots=True)
class ConsolidateJob:
    """One step of the ranks of one chunk of the rank axis.

    Memory of the task: 116 bytes for each of these ranks and each tensor of the axis, twice.
    """

    store: StoreAddress
    writer: str
    """Who writes the view: the axis of another writer may have other tensors at its end."""
    grid: CubeGrid
    width: int
    """How many tensors the axis has in the store."""
    step: int
    place: int
    """Of the step, on the axis of steps."""
    rank_chunk: int
    members: tuple[tuple[int, int], ...]
    """Rank, and its place within the chunk."""


@dataclass(frozen=True, slots=True)
class UnknownTensors:
    """The step has tensors that are not on the axis: nothing was written."""

    job: ConsolidateJob
    keys: tuple[TensorKey, ...]
    """In order of execution."""


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The objects of this step are written."""

    job: ConsolidateJob
    fingerprints: dict[int, str]
    """By rank: the generation that was read. Ranks that have no commit any more, or a damaged one, are not
    in it."""
    statuses: dict[int, str]
    totals: dict[int, tuple[int, ...]]
    """By rank, in the order of `TOTALS`."""
    anomalies: npt.NDArray[np.int64]
    """(ANOMALY_FIELDS, rank of the chunk, tensor); -1 for what a rank does not have."""
    damaged: dict[int, str]


ConsolidateResult: TypeAlias = UnknownTensors | Consolidated


def consolidate(job: ConsolidateJob) -> ConsolidateResult:
    """Write the objects of one step that belong to no other step. Safe to run again.

    Raises:
        StoreError: the store refused.
    """
    objects = open_objects(job.store)
    axis = _axis(job)
    commits, damaged = _commits(objects, job)
    found, more_damaged = _tables(objects, commits)
    known = TensorAxis(axis.keys) if len(axis) else TensorAxis()
    block = block_of(job.step, found, known)
    if len(known) > job.width:
        return UnknownTensors(job, tuple(known.keys[job.width :]))
    cubes = Cubes(job.grid)
    anomalies = _spread(job, block, cubes, objects)
    return Consolidated(
        job,
        {rank: commits[rank].fingerprint for rank in found},
        {rank: commits[rank].summary.status for rank in found},
        {rank: tuple(getattr(commits[rank].summary, name) for name in TOTALS) for rank in found},
        anomalies,
        damaged | more_damaged,
    )


def _commits(objects: ObjectStore, job: ConsolidateJob) -> tuple[dict[int, Commit], dict[int, str]]:
    commits, damaged = commit.read_many(objects, [StepKey(rank, job.step) for rank, _ in job.members])
    return {key.rank: one for key, one in commits.items()}, {k.rank: why for k, why in damaged.items()}


def _tables(objects: ObjectStore, commits: dict[int, Commit]) -> tuple[dict[int, Tables], dict[int, str]]:
    names = {
        f"{one.prefix}/{key}": (rank, key) for rank, one in commits.items() for key in tables.chunk_keys()
    }
    chunks: dict[int, dict[str, bytes]] = {}
    for name, data in objects.get_many(list(names)).items():
        rank, key = names[name]
        chunks.setdefault(rank, {})[key] = data
    found: dict[int, Tables] = {}
    damaged: dict[int, str] = {}
    for rank, one in commits.items():
        try:
            nodes = dict(one.nodes)
            decoded = tables.decode(nodes, chunks.pop(rank, {}), str(one.key))
            found[rank] = tables.check(decoded, nodes, str(one.key), has_tensors=one.without_tensors is None)
        except DamagedStore as exc:
            damaged[rank] = exc.message
    return found, damaged


def _spread(job: ConsolidateJob, block: Block, cubes: Cubes, objects: ObjectStore) -> npt.NDArray[np.int64]:
    """Write the objects of this step, and return the counts that share objects with other steps."""
    places = dict(job.members)
    into = [places[rank] for rank in block.ranks]
    ranks, width = job.grid.ranks, job.width
    block = block.widened(width)
    written: dict[str, bytes] = {}
    for name, layout in cubes.per_step.items():
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
    anomalies = np.full((len(ANOMALY_FIELDS), ranks, width), -1, np.int64)
    for number, name in enumerate(ANOMALY_FIELDS):
        anomalies[number, into] = _as_counts(block.statistic(name))
    return anomalies


def _as_counts(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return counts as integers, -1 where nothing is known."""
    return np.where(np.isnan(values), -1, values).astype(np.int64)


_AXES: dict[tuple[StoreAddress, str], TensorAxis] = {}
_AXES_LOCK = threading.Lock()


def _axis(job: ConsolidateJob) -> TensorAxis:
    """Return the axis of tensors as it is in the store; read once in each process, and again when it grew."""
    with _AXES_LOCK:
        key = (job.store, job.writer)
        axis = _AXES.get(key)
        if axis is None or len(axis) < job.width:
            axis = read_axis(open_objects(job.store), Cubes(job.grid), job.width)
            _AXES.clear()  # one view at a time is enough
            _AXES[key] = axis
    return axis if len(axis) == job.width else TensorAxis(axis.keys[: job.width])
