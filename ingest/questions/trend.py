"""Statistics over steps and ranks: one line per tensor and rank, or one field of ranks and steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ingest.reader.catalog import Catalog, Choice
from ingest.reader.snapshot import Snapshot, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from workers.arrays.statistics import COUNT_FIELDS, FIELDS
from workers.errors import UsageError
from workers.rules.names import fits, matching
from workers.store.blocks import Block, TensorKey

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

#: Statistics that are made of several others.
_SUMS = {
    "inf_count": ("pos_inf_count", "neg_inf_count"),
    "non_finite_count": ("nan_count", "pos_inf_count", "neg_inf_count"),
}
#: Those that count what others mark.
ABOUT_NON_FINITE = (*_SUMS["non_finite_count"], *_SUMS)
#: What can be asked for.
STATISTICS = (*FIELDS, *_SUMS)
AGGREGATES = ("max", "min", "sum", "mean")
#: What people call them, without `_`, `-` and case.
_ALIASES = {
    "norm": "l2_norm",
    "l2": "l2_norm",
    "nan": "nan_count",
    "nans": "nan_count",
    "inf": "inf_count",
    "infs": "inf_count",
    "posinf": "pos_inf_count",
    "neginf": "neg_inf_count",
    "+inf": "pos_inf_count",
    "inf+": "pos_inf_count",
    "nonfinite": "non_finite_count",
    "naninf": "non_finite_count",
    "zero": "zero_count",
    "zeros": "zero_count",
    "negative": "negative_count",
    "positive": "positive_count",
    "size": "count",
    "numel": "count",
    "minimum": "min",
    "maximum": "max",
    "average": "mean",
    "avg": "mean",
    "stddev": "std",
    "standarddeviation": "std",
    "sigma": "std",
}
#: Values of one answer: a million take about 50 MB as a table.
MAX_VALUES = 2_000_000


def statistic_named(name: str) -> str:
    """Return the statistic that a name stands for: `l2norm` and `norm` are `l2_norm`, `nan` is `nan_count`.

    Raises:
        UsageError: it stands for none.
    """
    plain = re.sub(r"[\s_-]+", "", name.lower())
    by_plain = {one.replace("_", ""): one for one in STATISTICS}
    found = by_plain.get(plain) or _ALIASES.get(plain)
    if found is None:
        raise UsageError(f"{name!r} is no statistic", hint=f"There are: {', '.join(STATISTICS)}.")
    return found


def trend(
    store: Catalog,
    pattern: str,
    stat: str = "l2_norm",
    *,
    rank: Choice = None,
    step: Choice = None,
    include_partial: bool = False,
) -> pd.DataFrame:
    """Return one statistic of the tensors that a glob fits, over steps and ranks.

    Memory: what `StepStatistics` takes, and 60 bytes for each value, of which there are at most two millions.

    Args:
        store: the store.
        pattern: a glob over the names of tensors, such as `*Adam*.input.0`.
        stat: the statistic, or what people call it; see `STATISTICS`.
        rank: one rank, or several; all where None.
        step: one step, or several; all where None.
        include_partial: take steps with quarantined or missing files, too.

    Returns:
        A row for each tensor, rank and step that is there, by tensor in order of execution, rank and step:
        `name`, `net`, `graph`, `rank`, `step`, `value` (float64; NaN where it is not known, as the mean of
        nothing but NaN) and `non_finite` (how many elements are NaN or infinite; NaN where not known). What
        a rank does not have has no row. A loop's occurrences are tensors of their own (`...#1`). `attrs` has
        `statistic`, and `left_out`: the steps that were not looked at.

    Raises:
        UsageError: nothing fits, or too much does.
        DamagedStore: the index of a step is missing or damaged.
    """
    return trend_of(take_snapshot(store, rank, step, include_partial=include_partial), pattern, stat)


def trend_of(snapshot: Snapshot, pattern: str, stat: str) -> pd.DataFrame:
    """Return one statistic of some tensors of a snapshot; see `trend`."""
    import pandas as pd

    name = statistic_named(stat)
    columns: dict[str, list[npt.NDArray[np.float64] | npt.NDArray[np.int64]]] = {
        column: [] for column in ("tensor", "rank", "step", "value", "non_finite")
    }
    total = 0
    survey = StepStatistics(snapshot)
    for block, places in _chosen(survey, pattern):
        ranks, tensors = np.nonzero(block.row[:, places] >= 0)
        total += ranks.size
        if total > MAX_VALUES:
            raise UsageError(
                f"{pattern!r} fits more than {MAX_VALUES} values",
                hint="Narrow the pattern, or choose with --rank and --step.",
            )
        columns["tensor"].append(places[tensors])
        columns["rank"].append(np.array(block.ranks)[ranks])
        columns["step"].append(np.full(ranks.size, block.step))
        columns["value"].append(_statistic(block, name)[:, places][ranks, tensors])
        columns["non_finite"].append(_statistic(block, "non_finite_count")[:, places][ranks, tensors])
    joined = {column: np.concatenate(parts) for column, parts in columns.items()}
    order = np.lexsort((joined["step"], joined["rank"], joined["tensor"]))
    places = joined.pop("tensor")[order].astype(np.int64)
    distinct, code = np.unique(places, return_inverse=True)
    keys = [survey.axis[int(place)] for place in distinct]
    texts = {
        "name": [key.name for key in keys],
        "net": [key.net for key in keys],
        "graph": [key.graph for key in keys],
    }
    frame = pd.DataFrame(
        {column: np.array(values, object)[code] for column, values in texts.items()}
        | {column: values[order] for column, values in joined.items()}
    )
    frame.attrs = {"statistic": name, "left_out": [str(one) for one in snapshot.left_out]}
    return frame


def heatmap(
    store: Catalog,
    pattern: str,
    stat: str = "l2_norm",
    *,
    aggregate: str | None = None,
    rank: Choice = None,
    step: Choice = None,
    include_partial: bool = False,
) -> xr.DataArray:
    """Return one statistic as a field of ranks and steps, over all tensors that a glob fits.

    Memory: what `StepStatistics` takes, and three numbers for each rank and step.

    Args:
        store: the store.
        pattern: a glob over the names of tensors.
        stat: the statistic, or what people call it; see `STATISTICS`.
        aggregate: how several tensors become one number: `max`, `min`, `sum` or `mean`. By default the sum
            of counts, the `min` of `min`, and the `max` of all else.
        rank: one rank, or several; all where None.
        step: one step, or several; all where None.
        include_partial: take steps with quarantined or missing files, too.

    Returns:
        float64 (rank, step), named by the statistic; NaN where a rank has no such tensor in that step, or
        nothing is known of it. The coordinates `tensors` and `non_finite`, (rank, step), say how many
        tensors there are, and how many of their elements are NaN or infinite. `attrs` has `pattern`,
        `statistic`, `aggregate`, `tensors` (how many fit), and `left_out`.

    Raises:
        UsageError: nothing fits, or there is no such statistic or aggregate.
        DamagedStore: the index of a step is missing or damaged.
    """
    return heatmap_of(
        take_snapshot(store, rank, step, include_partial=include_partial), pattern, stat, aggregate
    )


def heatmap_of(snapshot: Snapshot, pattern: str, stat: str, aggregate: str | None = None) -> xr.DataArray:
    """Return one statistic of some tensors of a snapshot as a field; see `heatmap`."""
    import xarray as xr

    name = statistic_named(stat)
    how = (aggregate or default_aggregate(name)).lower()
    if how not in AGGREGATES:
        raise UsageError(f"{aggregate!r} is no aggregate", hint=f"There are: {', '.join(AGGREGATES)}.")
    ranks, steps = snapshot.ranks, snapshot.steps
    values = np.full((len(ranks), len(steps)), np.nan)
    non_finite = np.full(values.shape, np.nan)
    tensors = np.zeros(values.shape, np.int64)
    survey = StepStatistics(snapshot)
    distinct: set[int] = set()
    for number, (block, places) in enumerate(_chosen(survey, pattern)):
        rows = np.searchsorted(ranks, block.ranks)
        present = block.row[:, places] >= 0
        distinct |= set(places[present.any(axis=0)].tolist())
        tensors[rows, number] = present.sum(axis=1)
        values[rows, number] = _aggregated(_statistic(block, name)[:, places], how)
        non_finite[rows, number] = _aggregated(_statistic(block, "non_finite_count")[:, places], "sum")
    field = ("rank", "step")
    return xr.DataArray(
        values,
        dims=field,
        coords={
            "rank": np.array(ranks, np.int64),
            "step": np.array(steps, np.int64),
            "tensors": (field, tensors),
            "non_finite": (field, non_finite),
        },
        name=name,
        attrs={
            "pattern": pattern,
            "statistic": name,
            "aggregate": how,
            "tensors": len(distinct),
            "left_out": [str(one) for one in snapshot.left_out],
        },
    )


def default_aggregate(statistic: str) -> str:
    """Return how a statistic of several tensors becomes one where nothing else is said."""
    if statistic in COUNT_FIELDS or statistic in _SUMS:
        return "sum"
    return "min" if statistic == "min" else "max"


def _chosen(survey: StepStatistics, pattern: str) -> Iterator[tuple[Block, npt.NDArray[np.int64]]]:
    """Yield each block with the places of the tensors that fit.

    Raises:
        UsageError: after the last one, where no tensor of any block fits.
    """
    fitting = fits(pattern)
    known: list[bool] = []
    there = np.zeros(0, bool)
    for block in survey.blocks():
        width = block.row.shape[1]
        known += [fitting(survey.axis[place].name) for place in range(len(known), width)]
        there = np.pad(there, (0, max(width - there.size, 0)))
        present = block.present.any(axis=0)
        there[:width] |= present
        yield block, np.flatnonzero(np.array(known[:width], bool) & present)
    found = np.flatnonzero(there & np.array(known, bool))
    if not found.size:
        keys: list[TensorKey] = survey.axis.keys
        matching(pattern, [keys[place].name for place in np.flatnonzero(there).tolist()])


def _statistic(block: Block, name: str) -> npt.NDArray[np.float64]:
    """Return a statistic of a block, or a sum of some, (rank, tensor); NaN where any part is not known."""
    parts = [block.statistic(one) for one in _SUMS.get(name, (name,))]
    total: npt.NDArray[np.float64] = sum(parts[1:], start=parts[0])
    return total


def _aggregated(values: npt.NDArray[np.float64], how: str) -> npt.NDArray[np.float64]:
    """Return one number for each rank, over the tensors of which it is known; NaN where of none."""
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    if how in ("max", "min"):
        edge = -math.inf if how == "max" else math.inf
        filled = np.where(known, values, edge)
        found = getattr(filled, how)(axis=1, initial=edge)
    else:
        with np.errstate(over="ignore"):
            found = np.where(known, values, 0).sum(axis=1)
        if how == "mean":
            found = found / np.maximum(count, 1)
    return np.where(count > 0, found, np.nan)
