"""One statistic of all tensors that match, over ranks and steps, as a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from ingest.questions.matching_tensors import matching_tensors, statistics_for, unused_steps
from ingest.questions.statistic_names import statistic_for, statistic_named
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.tensor_filter import FilterFields, with_pattern
from workers.arrays.aggregate import AGGREGATES, aggregated, default_aggregate
from workers.errors import UsageError

if TYPE_CHECKING:
    import xarray as xr


def heatmap(
    store: Catalog,
    pattern: str | None = None,
    stat: str | None = None,
    *,
    aggregate: str | None = None,
    rank: Choice = None,
    step: Choice = None,
    include_partial: bool = False,
    **conditions: Unpack[FilterFields],
) -> xr.DataArray:
    """Return one statistic as a field of ranks and steps, over all tensors whose names match a glob.

    Memory: what `StepStatistics` takes, and three numbers for each rank and step.

    Args:
        store: the store.
        pattern: a glob for the names of tensors; all if None.
        stat: the statistic, or another name for it; None: see `statistic_for`.
        aggregate: how several tensors become one number: `max`, `min`, `sum` or `mean`. By default the sum
            of counts, the `min` of `min`, and the `max` of all others.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        include_partial: also use steps with quarantined or missing files.
        conditions: what else a tensor must fulfil in a step; see `trend`.

    Returns:
        float64 (rank, step), with the name of the statistic; NaN if a rank does not have such a tensor in
        that step, or its value is unknown. The coordinates `tensors`, `elements` and `non_finite`,
        (rank, step), are the number of tensors, of their elements, and of those of the elements that are
        NaN or infinite; NaN if they are unknown. `attrs` has `pattern`,
        `statistic`, `aggregate`, `tensors` (the number of tensors that match), `left_out`, `damaged`.

    Raises:
        UsageError: no tensor matches, or the statistic or the aggregate is unknown.
        DamagedStore: no step can be read.
    """
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    chosen = with_pattern(pattern, conditions)
    statistic = statistic_for(stat, chosen)
    return ask_of_undamaged(snapshot, lambda readable: heatmap_of(readable, chosen, statistic, aggregate))


def heatmap_of(
    snapshot: Snapshot, chosen: FilterFields, stat: str, aggregate: str | None = None
) -> xr.DataArray:
    """Return one statistic of some tensors of a snapshot as a field; see `heatmap`."""
    import xarray as xr  # deferred: takes 0.7 s to import

    statistic = statistic_named(stat)
    how = (aggregate or default_aggregate(statistic)).lower()
    if how not in AGGREGATES:
        raise UsageError(f"{aggregate!r} is not an aggregate", hint=f"Aggregates: {', '.join(AGGREGATES)}.")
    ranks, steps = snapshot.ranks, snapshot.steps
    values = np.full((len(ranks), len(steps)), np.nan)
    non_finite, elements = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    tensors = np.zeros(values.shape, np.int64)
    distinct: set[int] = set()
    statistics = statistics_for(snapshot, chosen, (statistic, "count"))
    for number, matches in enumerate(matching_tensors(statistics, chosen)):
        rows = np.searchsorted(ranks, matches.block.ranks)
        distinct |= set(matches.places.tolist())
        tensors[rows, number] = matches.present.sum(axis=1)
        values[rows, number] = aggregated(matches.statistic(statistic), how)
        elements[rows, number] = aggregated(matches.statistic("count"), "sum")
        non_finite[rows, number] = aggregated(matches.statistic("non_finite_count"), "sum")
    field = ("rank", "step")
    return xr.DataArray(
        values,
        dims=field,
        coords={
            "rank": np.array(ranks, np.int64),
            "step": np.array(steps, np.int64),
            "tensors": (field, tensors),
            "elements": (field, elements),
            "non_finite": (field, non_finite),
        },
        name=statistic,
        attrs={
            "pattern": str(chosen.get("name") or "*"),
            "statistic": statistic,
            "aggregate": how,
            "tensors": len(distinct),
            **unused_steps(snapshot),
        },
    )
