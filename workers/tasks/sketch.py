"""`sketch`: the Dask task that adds sketches to a step which was committed without them.

Idempotent. The payloads are read from the store; the dump is not needed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from workers.arrays.digest import SMALL_NBYTES, RunningBlockDigests
from workers.arrays.marginals import MarginalTable
from workers.errors import DamagedStore, StepRemoved, TensorsRemoved
from workers.model import MIB, StepKey
from workers.store import commit, metadata
from workers.store.commit import Commit, extend
from workers.store.model import RowKind, StoreAddress
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
        if why := _why_left(present):
            return Sketched(job.key, left=why)
        sketches = sketches_of(StoredStep(objects, present))
    except (DamagedStore, StepRemoved, TensorsRemoved) as exc:
        return Sketched(job.key, left=exc.message)
    documents = {path: node for path, node in sketches.documents.items() if path not in present.nodes}
    chunks = {key: data for key, data in sketches.chunks.items() if key.partition("/c/")[0] in documents}
    if not extend(objects, present, documents, chunks):
        return Sketched(job.key, left="it was committed again, or removed, meanwhile")
    return Sketched(job.key, tensors=sketches.tensors)


def _why_left(present: Commit) -> str:
    """Return why a step needs no sketches, or cannot get them; "" if it can."""
    if has_all_sketches(present.nodes):
        return HAS_SKETCHES
    return "" if present.without_tensors is None else str(present.without_tensors)


@dataclass(frozen=True, slots=True)
class Sketches:
    """The tables of the sketches of a step, encoded."""

    tensors: int
    """How many tensors have a histogram."""
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
    large = _large_payloads(step)
    is_stored = (table.number("size") > 0) & (table.number("offset") >= 0)
    scopes = {arrays: counted.intersection(rows_with_marginals(table, arrays.scope)) for arrays in wanted}
    summed = set(chain.from_iterable(scopes.values()))
    rows = [row for row in sorted(counted | large) if is_stored[row]]
    of_axes: dict[int, MarginalTable] = {}
    bins: dict[int, npt.NDArray[np.int64]] = {}
    blocks: dict[int, npt.NDArray[np.int64]] = {}
    for row, pieces in step.payloads(rows, _PIECE_NBYTES):
        recomputed, running = _recomputed(step, row, summed), RunningBlockDigests()
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


def _recomputed(step: StoredStep, row: int, summed: Container[int]) -> RecomputedStatistics:
    return RecomputedStatistics(step, row, with_histogram=True, with_marginals=row in summed)


def _large_payloads(step: StoredStep) -> set[int]:
    """Return the rows of tensors with payloads of several blocks; of equal payloads, one row."""
    table = step.tables
    is_large = (table.label("kind") == RowKind.TENSOR.value) & (table.number("nbytes") > SMALL_NBYTES)
    rows = np.flatnonzero(is_large).tolist()
    return set(distinct_payloads(rows, table))
