"""The values of a heatmap alone, by step and rank: the consolidated view often has them ready."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingest.questions.matching_tensors import matching_tensors
from ingest.questions.statistic_names import statistic_for
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.cubes.rank_statistics import RankValues, of_all_tensors, of_named_tensors
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import with_pattern
from workers.arrays.aggregate import aggregated, default_aggregate, parts_of
from workers.errors import UsageError


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
        for matches in matching_tensors(statistics, with_pattern(pattern, {}), left):
            ranks = np.array(matches.block.ranks, np.int64)
            read[matches.block.step] = RankValues(ranks, aggregated(matches.statistic(statistic), how))
    except UsageError:
        if is_required:
            raise
    return read
