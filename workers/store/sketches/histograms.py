"""The histograms of the tensors of a step: one table of its generation, `histograms`.

    histograms      (entry, field) int64: row, exponent, positive, negative

An entry is one bin of one tensor: how many of its elements are in (2**exponent, 2**(exponent+1)], and how
many in the same range of negative numbers. Only bins that hold elements have an entry. Of equal tensors, one
row has entries, and `by_row` finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.dtypes import from_name
from workers.arrays.sketches import histogram
from workers.arrays.sketches.histogram import Histogram
from workers.arrays.statistics import Statistics
from workers.errors import DamagedStore
from workers.store.model import RowKind
from workers.store.sketches.entry_table import EntryTable, is_of_rows, rows_of
from workers.store.tables import Tables

TABLE = EntryTable("histograms", histogram.FIELDS)
_NO_BINS = np.zeros((0, len(histogram.FIELDS)), np.int64)


def by_row(entries: npt.NDArray[np.int64], index: Tables) -> dict[int, npt.NDArray[np.int64]]:
    """Return by row of the index its histogram, (bin, len(histogram.FIELDS)); rows without one are missing.

    Equal tensors have equal histograms: those with the same digest and type. In device layout, where the
    padding does not count, they must have the same shape, too.
    """
    of_rows = TABLE.own(entries)
    if not of_rows:
        return {}
    of_content: dict[tuple[object, ...], npt.NDArray[np.int64]] = {}
    contents = contents_of(index)
    for row, bins in of_rows.items():
        if row < len(contents):
            of_content.setdefault(contents[row], bins)
    shared = {row: of_content[content] for row, content in enumerate(contents) if content in of_content}
    return shared | of_rows


def distinct(rows: Iterable[int], index: Tables) -> list[int]:
    """Return the rows, except of tensors that are equal to a tensor of an earlier row; see `by_row`."""
    contents = contents_of(index)
    return list({contents[row]: row for row in sorted(rows, reverse=True)}.values())


def of_tables(
    index: Tables, entries: npt.NDArray[np.int64], where: str, wanted: Collection[int] | None = None
) -> dict[int, Histogram]:
    """Return by row the histogram of each tensor that has one; equal tensors share it.

    A tensor of zeros alone has one without any entries, because its statistics say everything.

    Args:
        index: the index of the step.
        entries: the table of its histograms.
        where: names the step, for errors.
        wanted: the rows that are asked for; all if None.

    Raises:
        DamagedStore: a histogram contradicts the statistics.
    """
    bins_of = by_row(entries, index)
    made: dict[tuple[int, int], Histogram | None] = {}
    known: dict[int, Histogram] = {}
    for row in counted_rows(index):
        if wanted is not None and row not in wanted:
            continue
        bins = bins_of.get(row, _NO_BINS)
        # What follows from shared bins is computed once.
        key = (id(bins), row if bins is _NO_BINS else -1)
        if key not in made:
            made[key] = _histogram(index, row, bins, where)
        if (of_row := made[key]) is not None:
            known[row] = of_row
    return known


def counted_rows(index: Tables) -> list[int]:
    """Return the rows of tensors of real numbers whose statistics were computed."""
    is_counted = (index.label("kind") == RowKind.TENSOR.value) & (
        index.label("statistics_from") == "computed"
    )
    dtypes = index.label("dtype")
    has_real_numbers = {dtype: _has_histogram(dtype) for dtype in set(dtypes[is_counted].tolist())}
    return [row for row in np.flatnonzero(is_counted).tolist() if has_real_numbers[dtypes[row]]]


def _has_histogram(dtype: str) -> bool:
    try:
        return histogram.has_histogram(from_name(dtype))
    except (ValueError, TypeError):
        return False  # of a later version


def _histogram(index: Tables, row: int, bins: npt.NDArray[np.int64], where: str) -> Histogram | None:
    statistics = Statistics.from_row(index.statistics[row].tolist())
    try:
        return Histogram.of_rows(bins, statistics)
    except ValueError as exc:
        if not len(bins):
            return None  # it has elements, and they were not counted
        raise DamagedStore(f"{where}: {TABLE.path} of row {row}: {exc}") from exc


def without_copies(entries: npt.NDArray[np.int64], index: Tables) -> npt.NDArray[np.int64]:
    """Return the entries, except of tensors that are equal to a tensor of an earlier row."""
    return entries[is_of_rows(entries, distinct(rows_of(entries), index))]


def contents_of(index: Tables) -> list[tuple[object, ...]]:
    """Return for each row a key that is equal for two rows if their elements are equal."""
    digests = np.ascontiguousarray(index.digest).view(f"V{DIGEST_BYTES}").ravel().tolist()
    contents: list[tuple[object, ...]] = list(zip(digests, index.label("dtype").tolist(), strict=True))
    for row in np.flatnonzero(index.label("layout") == "device").tolist():
        contents[row] += (index.shape[row].tobytes(),)
    return contents
