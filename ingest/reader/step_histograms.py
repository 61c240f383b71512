"""The histograms of one step of one rank: how many elements of each tensor lie in each power of two."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from workers.arrays.sketches.histogram import Histogram
from workers.store.sketches import histograms
from workers.store.sketches.entry_table import EntryTable
from workers.store.step import StoredStep


def histograms_of(step: StoredStep, rows: Collection[int] | None = None) -> dict[int, Histogram]:
    """Return by row the histogram of each tensor that has one. Takes one request besides the index.

    A tensor of zeros alone has one in any step. Others have none if only their statistics were dumped, if
    they are not made of real numbers, or if the step was committed without sketches.

    Args:
        step: the step.
        rows: those that are asked for; all if None.

    Raises:
        DamagedStore: the histograms are missing or damaged.
        StepRemoved: the step was removed since it was opened.
    """
    with step.asking_again():
        return histograms.of_tables(step.tables, read_entries(step), str(step.key), rows)


def read_entries(step: StoredStep, table: EntryTable = histograms.TABLE) -> npt.NDArray[np.int64]:
    """Return the entries of a table of a step, (entry, len(table.fields)); none if it does not exist.

    Raises:
        DamagedStore: it is missing or damaged.
    """
    document = step.commit.nodes.get(table.path)
    if document is None:
        return table.empty()
    chunk = step.objects.get(f"{step.commit.prefix}/{table.chunk}")
    return table.decode(document, chunk, str(step.key), step.commit.record.checksums)
