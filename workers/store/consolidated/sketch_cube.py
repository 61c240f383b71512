"""What the cubes hold of the histograms of a step: usual percentiles, and what casts to usual formats lose.

The cubes cannot hold the histograms, of which each has as many bins as its tensor needs. They hold the bounds
that follow from these for a few columns of `workers.store.sketches.sketch_names`, as float64, so that a
condition is as certain as if the histograms were read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.arrays.bounds import BoundedColumn
from workers.arrays.compiled.histogram_loops import LAST, LOWEST_EXPONENT
from workers.arrays.number_formats import format_named
from workers.arrays.sketches.histogram_table import HistogramTable
from workers.arrays.statistics import FIELDS
from workers.store.sketches import histograms
from workers.store.sketches.entry_table import rows_of
from workers.store.sketches.sketch_names import LOSS, PERCENTILE, is_sketch_column, percent_of
from workers.store.tables import Tables

#: The columns, by the names that the cubes have for them.
SKETCHES = (
    *("p1", "p50", "p99", "p99.9", "abs_p50", "abs_p99", "abs_p99.9"),
    *(
        f"{loss}_{name}"
        for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "nvfp4")
        for loss in ("overflow", "underflow")
    ),
)
BOUNDS = ("low", "high")
_PLACES = {name.replace(".", "_"): place for place, name in enumerate(SKETCHES)}


def sketch_place(name: str) -> int | None:
    """Return the place in `SKETCHES` of a column of a condition, however it spells its format; None for none.

    Args:
        name: as conditions have it inside, `p99_9` for `p99.9`.
    """
    if not is_sketch_column(name):
        return None
    if loss := LOSS.fullmatch(name):
        name = f"{loss[1]}_{format_named(loss[2]).name}"
    elif percentile := PERCENTILE.fullmatch(name):
        name = f"{percentile[1] or ''}p{percent_of(percentile):g}".replace(".", "_")
    return _PLACES.get(name)


@dataclass(frozen=True, slots=True, eq=False)
class SketchedRows:
    """The columns of one step of one rank."""

    rows: npt.NDArray[np.int64]
    """(n,): the rows of the index that have a histogram."""
    of_row: npt.NDArray[np.int64]
    """(n,): where in `values` each of them is; equal tensors are there once."""
    values: npt.NDArray[np.float64]
    """(distinct, len(SKETCHES), len(BOUNDS)); NaN for percentiles of tensors without a finite element."""
    without: int
    """How many other tensors of real numbers there are: those that lack a histogram."""


def sketched_rows(index: Tables, entries: npt.NDArray[np.int64]) -> SketchedRows:
    """Return what the cubes hold of a step; a histogram that contradicts the statistics counts as missing.

    Args:
        index: the index of the step.
        entries: the table of its histograms, `histograms.TABLE`.
    """
    counted = np.array(histograms.counted_rows(index), np.int64)
    sketch_of = _numbers_of_rows(index, entries, counted)
    first_rows, members = _distinct(counted, sketch_of)
    table, is_known = _table(index, entries, first_rows, sketch_of[first_rows])
    kept = is_known[members]
    elements = index.statistic("count")[first_rows]
    return SketchedRows(counted[kept], members[kept], _values(table, elements), int((~kept).sum()))


def _numbers_of_rows(
    index: Tables, entries: npt.NDArray[np.int64], counted: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return by row of the index the row whose entries it shares, (row,); -1 for rows without any."""
    shared = np.full(len(index.labels), -1, np.int64)
    own = np.array(rows_of(entries), np.int64)
    own = own[(own >= 0) & (own < len(shared))]
    if not len(own) or not len(counted):
        return shared
    contents = histograms.contents_of(index)
    first_of: dict[tuple[object, ...], int] = {}
    for row in own.tolist():
        first_of.setdefault(contents[row], row)
    shared[counted] = [first_of.get(contents[row], -1) for row in counted.tolist()]
    shared[own] = own
    return shared


def _distinct(
    counted: npt.NDArray[np.int64], sketch_of: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows that stand for equal ones, (distinct,), and the place in them of each row, (counted,)."""
    # A row without entries stands for itself.
    sharing = np.where(sketch_of[counted] >= 0, sketch_of[counted], -1 - counted)
    _, first, members = np.unique(sharing, return_index=True, return_inverse=True)
    return counted[first], members.reshape(-1)


def _table(
    index: Tables,
    entries: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    sketch_of: npt.NDArray[np.int64],
) -> tuple[HistogramTable, npt.NDArray[np.bool_]]:
    """Return the histograms of these rows, and which of them agree with the statistics, (row,)."""
    place_of = np.full(len(index.labels), -1, np.int64)
    place_of[sketch_of[sketch_of >= 0]] = np.flatnonzero(sketch_of >= 0)
    in_range = (entries[:, 0] >= 0) & (entries[:, 0] < len(place_of))
    entries = entries[in_range]
    tensor, bins = place_of[entries[:, 0]], entries[:, 1:]
    possible = (bins[:, 0] >= LOWEST_EXPONENT) & (bins[:, 0] <= LOWEST_EXPONENT + LAST)
    possible &= (bins[:, 1:] >= 0).all(axis=1)
    is_known = np.ones(len(rows), bool)
    is_known[tensor[(tensor >= 0) & ~possible]] = False
    used = (tensor >= 0) & possible
    tensor, bins = tensor[used], bins[used]
    statistics = dict(zip(FIELDS, index.statistics[rows].T, strict=True))
    for column, sign, infinite in (
        (1, "positive_count", "pos_inf_count"),
        (2, "negative_count", "neg_inf_count"),
    ):
        counted = np.zeros(len(rows), np.int64)
        np.add.at(counted, tensor, bins[:, column])
        is_known &= counted == statistics[sign] - statistics[infinite]
    is_known &= statistics["zero_count"] >= 0
    zeros = np.where(is_known, statistics["zero_count"], 0).astype(np.int64)
    kept = is_known[tensor]
    return HistogramTable.of_entries(
        tensor[kept], bins[kept], zeros, statistics["min"], statistics["max"]
    ), is_known


def _values(table: HistogramTable, elements: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    values = np.empty((table.tensors, len(SKETCHES), len(BOUNDS)))
    for name, place in _PLACES.items():
        values[:, place, 0], values[:, place, 1] = _column(name, table, elements)
    return values


def _column(name: str, table: HistogramTable, elements: npt.NDArray[np.float64]) -> BoundedColumn:
    if percentile := PERCENTILE.fullmatch(name):
        return table.quantile(percent_of(percentile) / 100, magnitude=percentile[1] is not None)
    loss = LOSS.fullmatch(name)
    assert loss is not None  # noqa: S101  (for mypy: these are the other columns)
    target = format_named(loss[2])
    lost = table.overflow(target) if loss[1] == "overflow" else table.underflow(target)
    some = np.where(elements > 0, elements, 1.0)
    return BoundedColumn(lost.low / some, lost.high / some)
