"""The histograms of one step of one rank: how many elements of each tensor lie in each power of two."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from workers.arrays.histogram import FIELDS, Histogram, has_histogram
from workers.arrays.statistics import Statistics
from workers.errors import DamagedStore
from workers.store import histograms
from workers.store.model import RowKind
from workers.store.step import StoredStep

_NO_BINS = np.zeros((0, len(FIELDS)), np.int64)


def histograms_of(step: StoredStep) -> dict[int, Histogram]:
    """Return by row the histogram of each tensor that has one. Takes one request besides the index.

    A tensor of zeros alone has one in any step. Others have none if only their statistics were dumped, if
    they are not made of real numbers, or if the step was committed without sketches.

    Raises:
        DamagedStore: the histograms are missing or damaged.
        StepRemoved: the step was removed since it was opened.
    """
    with step.asking_again():
        bins_of = histograms.by_row(read_entries(step), step.tables)
        made: dict[tuple[int, int], Histogram | None] = {}
        by_row: dict[int, Histogram] = {}
        for row in counted_rows(step):
            bins = bins_of.get(row, _NO_BINS)
            # Equal tensors share their bins: what follows from them is computed once.
            key = (id(bins), row if bins is _NO_BINS else -1)
            if key not in made:
                made[key] = _histogram(step, row, bins)
            if (histogram := made[key]) is not None:
                by_row[row] = histogram
    return by_row


def read_entries(step: StoredStep) -> npt.NDArray[np.int64]:
    """Return the entries of all histograms of a step, (entry, len(histograms.FIELDS)); none if it has none.

    Raises:
        DamagedStore: they are missing or damaged.
    """
    document = step.commit.nodes.get(histograms.PATH)
    if document is None:
        return histograms.empty()
    chunk = step.objects.get(f"{step.commit.prefix}/{histograms.CHUNK}")
    return histograms.decode(document, chunk, str(step.key))


def counted_rows(step: StoredStep) -> list[int]:
    """Return the rows of tensors of real numbers whose statistics were computed."""
    table = step.tables
    is_counted = (table.label("kind") == RowKind.TENSOR.value) & (
        table.label("statistics_from") == "computed"
    )
    return [row for row in np.flatnonzero(is_counted).tolist() if has_histogram(step.element(row))]


def _histogram(step: StoredStep, row: int, bins: npt.NDArray[np.int64]) -> Histogram | None:
    statistics = Statistics.from_row(step.tables.statistics[row].tolist())
    try:
        return Histogram.of_rows(bins, statistics)
    except ValueError as exc:
        if not len(bins):
            return None  # it has elements, and they were not counted
        raise DamagedStore(f"{step.key}: {histograms.PATH} of row {row}: {exc}") from exc
