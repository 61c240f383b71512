"""`sketch`: the Dask task that adds histograms to a step which was committed without them.

Idempotent. The payloads are read from the store; the dump is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.errors import DamagedStore, StepRemoved, TensorsRemoved
from workers.model import MIB, StepKey
from workers.store import commit, histograms
from workers.store.commit import Commit
from workers.store.extending import extend
from workers.store.model import StoreAddress
from workers.store.opening import open_objects
from workers.store.recomputed import RecomputedStatistics
from workers.store.step import StoredStep

_PIECE_NBYTES = 16 * MIB
HAS_HISTOGRAMS = "it has histograms"


@dataclass(frozen=True, slots=True)
class SketchJob:
    """One step of one rank to add histograms to."""

    store: StoreAddress
    key: StepKey


@dataclass(frozen=True, slots=True)
class Sketched:
    """What became of it."""

    key: StepKey
    tensors: int = 0
    """How many distinct tensors have a histogram now; those of zeros alone need none."""
    left: str = ""
    """Why the step was left as it is; "" if it was not."""


def sketch(job: SketchJob) -> Sketched:
    """Add the histograms of its tensors to a step, unless it has them.

    Memory: the index of the step, the histograms, and what `StoredStep.payloads` takes.

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
        entries = entries_from_payloads(StoredStep(objects, present))
    except (DamagedStore, StepRemoved, TensorsRemoved) as exc:
        return Sketched(job.key, left=exc.message)
    if not len(entries):
        return Sketched(job.key)
    if not extend(objects, present, *histograms.encode(entries)):
        return Sketched(job.key, left="it was committed again, or removed, meanwhile")
    return Sketched(job.key, tensors=len(np.unique(entries[:, 0])))


def _why_left(present: Commit) -> str:
    """Return why a step needs no histograms, or cannot get them; "" if it can."""
    if histograms.PATH in present.nodes:
        return HAS_HISTOGRAMS
    return "" if present.without_tensors is None else str(present.without_tensors)


def entries_from_payloads(step: StoredStep) -> npt.NDArray[np.int64]:
    """Return the histograms of a step from its payloads, (entry, len(histograms.FIELDS)).

    Raises:
        DamagedStore: the index or a payload is damaged.
        StepRemoved, TensorsRemoved: they were removed since the step was opened.
    """
    table = step.tables
    is_stored = (table.number("size") > 0) & (table.number("offset") >= 0)
    rows = [row for row in histograms.counted_rows(table) if is_stored[row]]
    made: dict[int, npt.NDArray[np.int64]] = {}
    for row, pieces in step.payloads(histograms.distinct(rows, table), _PIECE_NBYTES):
        recomputed = RecomputedStatistics(step, row, with_histogram=True)
        for piece in pieces:
            recomputed.update(piece)
        if len(bins := recomputed.histogram_rows()):
            made[row] = bins
    return histograms.joined([histograms.gathered(range(len(table.labels)), made)])
