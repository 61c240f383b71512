"""One statistic of tensors over steps, as a table: a row for each tensor, rank and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from ingest.questions.matching_tensors import matching_tensors, statistics_for, unused_steps
from ingest.questions.statistic_names import statistic_for, statistic_named
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import FilterFields, with_pattern
from workers.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

#: The limit of values in one answer; a million take about 50 MB as a table.
MAX_VALUES = 2_000_000


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
    statistics = statistics_for(snapshot, chosen, (statistic, *others))
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
    frame.attrs = {"statistic": statistic, **unused_steps(snapshot)}
    return frame


def _trend_columns(
    statistics: StepStatistics, chosen: FilterFields, statistic: str
) -> dict[str, npt.NDArray[Any]]:
    """Return one element for each value: the place of its tensor, rank, step, value and non-finite count."""
    parts: dict[str, list[npt.NDArray[Any]]] = {
        column: [] for column in ("tensor", "rank", "step", "value", "non_finite")
    }
    total = 0
    for matches in matching_tensors(statistics, chosen):
        ranks, tensors = np.nonzero(matches.present)
        total += ranks.size
        if total > MAX_VALUES:
            raise UsageError(
                f"more than {MAX_VALUES} values match",
                hint="Narrow the pattern, or choose ranks and steps (`rank`, `step`).",
            )
        parts["tensor"].append(matches.places[tensors])
        parts["rank"].append(np.array(matches.block.ranks)[ranks])
        parts["step"].append(np.full(ranks.size, matches.block.step))
        parts["value"].append(matches.statistic(statistic)[ranks, tensors])
        parts["non_finite"].append(matches.statistic("non_finite_count")[ranks, tensors])
    return {column: np.concatenate(arrays) for column, arrays in parts.items()}
