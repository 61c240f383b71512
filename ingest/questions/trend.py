"""Statistics over steps and ranks: a trend for each tensor and rank, or one field of ranks and steps."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from ingest.questions.empty_choice import empty_choice_error
from ingest.reader.block_filter import BlockFilter
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.cubes.rank_statistics import RankValues, of_all_tensors, of_named_tensors
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import FilterFields, TensorFilter, with_pattern
from workers.arrays.aggregate import AGGREGATES, STATISTICS, SUMS, aggregated, default_aggregate, parts_of
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.consolidated.blocks import BLOCK_COLUMNS, Block

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

#: Other names that people use, in lower case and without `_` and `-`.
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
#: The limit of values in one answer; a million take about 50 MB as a table.
MAX_VALUES = 2_000_000


def statistic_named(name: str) -> str:
    """Return the statistic that a name stands for: `l2norm` and `norm` are `l2_norm`, `nan` is `nan_count`.

    Raises:
        UsageError: the name does not stand for a statistic.
    """
    plain = re.sub(r"[\s_-]+", "", name.lower())
    by_plain = {statistic.replace("_", ""): statistic for statistic in STATISTICS}
    statistic = by_plain.get(plain) or _ALIASES.get(plain)
    if statistic is None:
        raise UsageError(f"{name!r} is not a statistic", hint=f"Statistics: {', '.join(STATISTICS)}.")
    return statistic


def statistic_for(name: str | None, chosen: Mapping[str, Any]) -> str:
    """Return the statistic that a name stands for; without one `mean` for a loss, which may be negative.

    A loss is a single number, and its mean is that number. Of all others it is `l2_norm`.

    Raises:
        UsageError: the name does not stand for a statistic.
    """
    if name is None:
        return "mean" if chosen.get("role") == "loss" else "l2_norm"
    return statistic_named(name)


def trend(
    store: Catalog,
    pattern: str | None = None,
    stat: str | None = None,
    *,
    rank: Choice = None,
    step: Choice = None,
    include_partial: bool = False,
    **conditions: Unpack[FilterFields],
) -> pd.DataFrame:
    """Return one statistic of the tensors whose names match a glob, over steps and ranks.

    Memory: what `StepStatistics` takes, and 60 bytes for each value, of which there are at most two millions.

    Args:
        store: the store.
        pattern: a glob for the names of tensors, such as `*Adam*.input.0`; all if None.
        stat: the statistic, or another name for it; None: see `statistic_for`.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        include_partial: also use steps with quarantined or missing files.
        conditions: what else a tensor must fulfil in a step: `role="loss"`, `op_type`, `io`, `graph`, `name`,
            `where`; see `FilterFields`.

    Returns:
        A row for each tensor, rank and step, by tensor in order of execution, rank and step: `name`, `net`,
        `graph`, `rank`, `step`, `value` (float64; NaN if it is unknown, such as the mean of NaN alone) and
        `non_finite` (the number of elements that are NaN or infinite; NaN if unknown). Tensors that a rank
        does not have are left out. Occurrences in a loop are separate tensors (`...#1`). `attrs` has
        `statistic`; `left_out`: the steps that were not used; `damaged`: those of them that are damaged.

    Raises:
        UsageError: no tensor matches, or too many do.
        DamagedStore: no step can be read.
    """
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    chosen = with_pattern(pattern, conditions)
    statistic = statistic_for(stat, chosen)
    return ask_of_undamaged(snapshot, lambda readable: trend_of(readable, chosen, statistic))


def trend_of(snapshot: Snapshot, chosen: FilterFields, stat: str) -> pd.DataFrame:
    """Return one statistic of some tensors of a snapshot; see `trend`."""
    import pandas as pd  # deferred: takes 0.4 s to import

    statistic = statistic_named(stat)
    # Numbers of elements only tell roles apart; the answer leaves them out.
    others = ("count",) if chosen.get("role") else ()
    statistics = _statistics_for(snapshot, chosen, (statistic, *others))
    columns = _trend_columns(statistics, chosen, statistic)
    order = np.lexsort((columns["step"], columns["rank"], columns["tensor"]))
    places = columns.pop("tensor")[order].astype(np.int64)
    distinct, code = np.unique(places, return_inverse=True)
    keys = [statistics.axis[int(place)] for place in distinct]
    texts = {
        "name": [key.name for key in keys],
        "net": [key.net for key in keys],
        "graph": [key.graph for key in keys],
    }
    frame = pd.DataFrame(
        {column: np.array(values, object)[code] for column, values in texts.items()}
        | {column: values[order] for column, values in columns.items()}
    )
    frame.attrs = {"statistic": statistic, **_not_used(snapshot)}
    return frame


def _trend_columns(
    statistics: StepStatistics, chosen: FilterFields, statistic: str
) -> dict[str, npt.NDArray[Any]]:
    """Return one element for each value: the place of its tensor, rank, step, value and non-finite count."""
    parts: dict[str, list[npt.NDArray[Any]]] = {
        column: [] for column in ("tensor", "rank", "step", "value", "non_finite")
    }
    total = 0
    for found in _matching_tensors(statistics, chosen):
        ranks, tensors = np.nonzero(found.present)
        total += ranks.size
        if total > MAX_VALUES:
            raise UsageError(
                f"more than {MAX_VALUES} values match",
                hint="Narrow the pattern, or choose ranks and steps (`rank`, `step`).",
            )
        parts["tensor"].append(found.places[tensors])
        parts["rank"].append(np.array(found.block.ranks)[ranks])
        parts["step"].append(np.full(ranks.size, found.block.step))
        parts["value"].append(found.statistic(statistic)[ranks, tensors])
        parts["non_finite"].append(found.statistic("non_finite_count")[ranks, tensors])
    return {column: np.concatenate(arrays) for column, arrays in parts.items()}


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

    name = statistic_named(stat)
    how = (aggregate or default_aggregate(name)).lower()
    if how not in AGGREGATES:
        raise UsageError(f"{aggregate!r} is not an aggregate", hint=f"Aggregates: {', '.join(AGGREGATES)}.")
    ranks, steps = snapshot.ranks, snapshot.steps
    values = np.full((len(ranks), len(steps)), np.nan)
    non_finite, elements = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    tensors = np.zeros(values.shape, np.int64)
    distinct: set[int] = set()
    statistics = _statistics_for(snapshot, chosen, (name, "count"))
    for number, found in enumerate(_matching_tensors(statistics, chosen)):
        rows = np.searchsorted(ranks, found.block.ranks)
        distinct |= set(found.places.tolist())
        tensors[rows, number] = found.present.sum(axis=1)
        values[rows, number] = aggregated(found.statistic(name), how)
        elements[rows, number] = aggregated(found.statistic("count"), "sum")
        non_finite[rows, number] = aggregated(found.statistic("non_finite_count"), "sum")
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
        name=name,
        attrs={
            "pattern": str(chosen.get("name") or "*"),
            "statistic": name,
            "aggregate": how,
            "tensors": len(distinct),
            **_not_used(snapshot),
        },
    )


def rank_values(
    store: Catalog,
    pattern: str | None = None,
    stat: str | None = None,
    *,
    rank: Choice = None,
    step: Choice = None,
    include_partial: bool = False,
) -> dict[int, RankValues]:
    """Return the values of `heatmap` by step, and nothing else, so that less is read.

    Of all tensors together, the consolidated view has them ready. Without it, this reads what `heatmap` does.

    Args:
        store: the store.
        pattern: a glob for the names of tensors; all if None or `*`.
        stat: the statistic, or another name for it; None: see `statistic_for`.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        include_partial: also use steps with quarantined or missing files.

    Returns:
        By step: the ranks that have it, and the value of each, by the default aggregate of the statistic.

    Raises:
        UsageError: no tensor matches, or the statistic is unknown.
        DamagedStore: no step can be read.
    """
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    name = statistic_for(stat, {})
    return ask_of_undamaged(snapshot, lambda readable: rank_values_of(readable, pattern, name))


def rank_values_of(snapshot: Snapshot, pattern: str | None, statistic: str) -> dict[int, RankValues]:
    """Return the values of a statistic of a snapshot by step; see `rank_values`."""
    if pattern in (None, "*"):
        known = of_all_tensors(snapshot, statistic)
    else:
        known = of_named_tensors(snapshot, statistic, pattern)
    left = [step for step in snapshot.steps if step not in known]
    return known | _read_values(snapshot, pattern, statistic, left, is_required=not known)


def _read_values(
    snapshot: Snapshot, pattern: str | None, statistic: str, left: Sequence[int], *, is_required: bool
) -> dict[int, RankValues]:
    """Return a statistic of these steps, tensor by tensor.

    Raises:
        UsageError: no tensor of these steps matches, and one is required.
    """
    if not left:
        return {}
    statistics = StepStatistics(snapshot, parts_of(statistic), digests=False)
    how = default_aggregate(statistic)
    read = {}
    try:
        for found in _matching_tensors(statistics, with_pattern(pattern, {}), left):
            ranks = np.array(found.block.ranks, np.int64)
            read[found.block.step] = RankValues(ranks, aggregated(found.statistic(statistic), how))
    except UsageError:
        if is_required:
            raise
    return read


def _not_used(snapshot: Snapshot) -> dict[Hashable, list[str]]:
    """Return the attributes of an answer that name the steps that it is not about."""
    return {
        "left_out": [str(left) for left in snapshot.left_out],
        "damaged": [str(left) for left in snapshot.left_out if left.is_damaged],
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """The tensors of one step that are chosen."""

    block: Block
    columns: npt.NDArray[np.int64]
    """Which tensors of the block are chosen on any rank."""
    places: npt.NDArray[np.int64]
    """Their places on the axis."""
    present: npt.NDArray[np.bool_]
    """(rank, place): whether the tensor is chosen on the rank."""

    def statistic(self, name: str) -> npt.NDArray[np.float64]:
        """Return a statistic, or a sum of several, (rank, place); NaN if it is absent or any part unknown."""
        parts = [_of_places(self.block.statistic(part), self.columns) for part in parts_of(name)]
        total: npt.NDArray[np.float64] = sum(parts[1:], start=parts[0])
        return total if self.present.all() else np.where(self.present, total, np.nan)


def _of_places(values: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return columns of an array; the array itself if they are all."""
    return values if places.size == values.shape[1] else values[:, places]


def _statistics_for(snapshot: Snapshot, chosen: FilterFields, wanted: Sequence[str]) -> StepStatistics:
    """Return the wanted statistics of a snapshot, and those that a choice or non-finite counts need."""
    named = {part for name in wanted for part in parts_of(name)} | set(SUMS["non_finite_count"])
    named |= TensorFilter(chosen, BLOCK_COLUMNS).names
    return StepStatistics(snapshot, tuple(name for name in FIELDS if name in named), digests=False)


def _matching_tensors(
    statistics: StepStatistics, chosen: FilterFields, steps: Sequence[int] | None = None
) -> Iterator[_Chosen]:
    """Yield the tensors of each step that are chosen; of all steps if None are named.

    Raises:
        UsageError: no tensor of any step is chosen; raised after the last step.
    """
    choice = BlockFilter(chosen, statistics.axis)
    if choice.filter.is_of_names:
        named = choice.of_names(len(statistics.axis))
        if not named.all():
            statistics.narrow_to(np.flatnonzero(named))
    is_present = np.zeros(0, bool)
    is_any = False
    for block in statistics.blocks(steps):
        tensors = np.arange(block.row.shape[1]) if block.tensors is None else block.tensors
        is_present = np.pad(is_present, (0, max(len(statistics.axis) - is_present.size, 0)))
        is_present[tensors] |= block.present.any(axis=0)
        mask = choice.mask(block)
        columns = np.flatnonzero(mask.any(axis=0))
        is_any |= bool(columns.size)
        yield _Chosen(block, columns, tensors[columns], _of_places(mask, columns))
    if not is_any:
        keys = [statistics.axis[place] for place in np.flatnonzero(is_present).tolist()]
        raise empty_choice_error(choice.filter, keys)
