"""The tensors of each step that match a question, and their statistics: shared by `trend` and `heatmap`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.empty_choice import empty_choice_error
from ingest.reader.block_filter import BlockFilter
from ingest.reader.snapshot import Snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.arrays.aggregate import SUMS, parts_of
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import BLOCK_COLUMNS, Block


@dataclass(frozen=True, slots=True, eq=False)
class MatchingTensors:
    """The tensors of one step that match on any rank."""

    block: Block
    columns: npt.NDArray[np.int64]
    """Which tensors of the block they are."""
    places: npt.NDArray[np.int64]
    """Their places on the axis."""
    present: npt.NDArray[np.bool_]
    """(rank, place): whether the tensor matches on the rank."""

    def statistic(self, name: str) -> npt.NDArray[np.float64]:
        """Return a statistic, or a sum of several, (rank, place); NaN if it is absent or any part unknown."""
        parts = [_columns_of(self.block.statistic(part), self.columns) for part in parts_of(name)]
        total: npt.NDArray[np.float64] = sum(parts[1:], start=parts[0])
        return total if self.present.all() else np.where(self.present, total, np.nan)


def _columns_of(values: npt.NDArray[Any], columns: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return these columns of an array; the array itself if they are all."""
    return values if columns.size == values.shape[1] else values[:, columns]


def statistics_for(snapshot: Snapshot, chosen: FilterFields, wanted: Sequence[str]) -> StepStatistics:
    """Return the wanted statistics of a snapshot, and those that a choice or non-finite counts need."""
    named = {part for name in wanted for part in parts_of(name)} | set(SUMS["non_finite_count"])
    named |= TensorFilter(chosen, BLOCK_COLUMNS).names
    return StepStatistics(snapshot, tuple(name for name in FIELDS if name in named), digests=False)


def matching_tensors(
    statistics: StepStatistics, chosen: FilterFields, steps: Sequence[int] | None = None
) -> Iterator[MatchingTensors]:
    """Yield the tensors of each step that match; of all steps if None are named.

    Raises:
        UsageError: no tensor of any step matches; raised after the last step.
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
        yield MatchingTensors(block, columns, tensors[columns], _columns_of(mask, columns))
    if not is_any:
        keys = [statistics.axis[place] for place in np.flatnonzero(is_present).tolist()]
        raise empty_choice_error(choice.filter, keys)


def unused_steps(snapshot: Snapshot) -> dict[Hashable, list[str]]:
    """Return the attributes of an answer that name the steps that it is not about."""
    return {
        "left_out": [str(left) for left in snapshot.left_out],
        "damaged": [str(left) for left in snapshot.left_out if left.is_damaged],
    }
