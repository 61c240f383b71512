"""Tables of one step of one rank besides its index: findings of rules, histograms, marginals.

Each function raises `DamagedStore` if what it reads is missing or damaged; those that are not called
`read_...` raise `StepRemoved` instead if the step was removed since it was opened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from workers.arrays.histogram import Histogram
from workers.arrays.marginals import Marginal, MarginalScope
from workers.errors import DamagedStore
from workers.store import findings
from workers.store.model import Finding
from workers.store.sketches import (
    HISTOGRAM_TABLE,
    EntryTable,
    MarginalArrays,
    StepMarginals,
    StepSketches,
    histograms_of_tables,
    marginal_arrays_of,
    marginals_in,
)
from workers.store.step import StoredStep


def _read(step: StoredStep, keys: Sequence[str]) -> dict[str, bytes]:
    prefix = f"{step.commit.prefix}/"
    objects = step.objects.get_many([prefix + key for key in keys]) if keys else {}
    return {key.removeprefix(prefix): data for key, data in objects.items()}


def findings_of(step: StoredStep) -> list[Finding] | None:
    """Return what rules found when a step was committed; None if it was committed without rules."""
    summary, nodes = step.commit.summary, step.commit.nodes
    if not summary.rules:
        return None
    with step.asking_again():
        keys = findings.chunk_keys(summary.rules, nodes)
        if not keys and summary.findings:
            raise DamagedStore(f"{step.key}: the findings that its commit counts are missing")
        checksums = step.commit.record.checksums
        return findings.decode(summary.rules, step.key, nodes, _read(step, keys), checksums) if keys else []


def histograms_of(step: StoredStep, rows: Collection[int] | None = None) -> dict[int, Histogram]:
    """Return by row how many elements lie in each power of two. Takes one request besides the index.

    A tensor of zeros alone has a histogram in any step. Others have none if only their statistics were
    dumped, without one; if they are not made of real numbers; or if the step was committed without sketches.

    Args:
        step: the step.
        rows: those that are asked for; all if None.
    """
    with step.asking_again():
        return histograms_of_tables(step.tables, read_entries(step), str(step.key), rows)


def read_entries(step: StoredStep, table: EntryTable = HISTOGRAM_TABLE) -> npt.NDArray[np.int64]:
    """Return the entries of a table of a step, (entry, len(table.fields)); none if it does not exist."""
    nodes = step.commit.nodes
    if table.path not in nodes:
        return table.empty()
    chunk = step.objects.get(f"{step.commit.prefix}/{table.chunk}")
    chunks = {} if chunk is None else {table.chunk: chunk}
    return table.decode(nodes, chunks, str(step.key), step.commit.record.checksums)


def marginals_of(step: StoredStep) -> dict[int, dict[int, Marginal]]:
    """Return by row and axis sums, norms and largest magnitudes. Takes two requests besides the index.

    Tensors of zeros have none, nor have small ones, those of other types than floats of 16 bits and more, and
    those of steps that were committed without marginals.
    """
    with step.asking_again():
        return read_marginals(step).by_row(step.tables)


def read_marginals(step: StoredStep, arrays: MarginalArrays | None = None) -> StepMarginals:
    """Return the marginals of a step as they are stored; none if it was committed without them.

    Args:
        step: the step.
        arrays: which arrays to read; default: the first of those that it has.
    """
    nodes, where = step.commit.nodes, str(step.key)
    if (arrays := arrays or marginal_arrays_of(nodes)) is None:
        return StepMarginals.none()
    chunks = _read(step, arrays.chunk_keys(nodes, where))
    return arrays.decode(nodes, chunks, where, step.commit.record.checksums)


def read_sketches(step: StoredStep) -> StepSketches:
    """Read the sketches of a step that rules and conditions need."""
    scope = marginals_in(step.commit.nodes) or MarginalScope.NONE
    return StepSketches(read_entries(step), read_marginals(step), scope)
