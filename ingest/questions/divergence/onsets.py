"""Where each odd rank began to be off: the first tensor that differs, its file and its values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ingest.questions.divergence.disagreements import DifferingTensor
from ingest.questions.divergence.result import Difference, Odd
from ingest.reader.snapshot import Snapshot
from ingest.reader.step_statistics import StepStatistics
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import Block

#: Steps that are read again for the order of execution and the values of the first difference.
_MAX_DETAILED = 32


class OnsetFinder:
    """Orders differences by execution, and finds where each odd rank began.

    Memory: one step of all ranks, see `StepStatistics`.
    """

    def __init__(self, statistics: StepStatistics) -> None:
        """Begin without a step; `find` reads some of them again."""
        self._statistics = statistics
        self._snapshot: Snapshot = statistics.snapshot
        self._order: dict[tuple[int, int], int] = {}
        """By step and tensor: its place in the order of execution, of tensors that begin to differ there."""

    def find(self, rows: list[DifferingTensor]) -> tuple[list[Odd], list[Difference]]:
        """Return where each odd rank began, and all differences; both by step and order of execution.

        Raises:
            DamagedStore: the index of a step is missing or damaged.
        """
        begun: dict[int, list[list[DifferingTensor]]] = {}
        for members in _by_ranks(rows):
            begun.setdefault(min(row.difference.first_step for row in members), []).append(members)
        odd: list[tuple[int, int, Odd]] = []
        for count, step in enumerate(sorted(begun)):
            block = self._statistics.block(step) if count < _MAX_DETAILED else None
            odd += [(step, *self._begin(members, step, block)) for members in begun[step]]
        odd.sort(key=lambda entry: entry[:2])
        return [onset for _, _, onset in odd], [row.difference for row in sorted(rows, key=self._place)]

    def _place(self, row: DifferingTensor) -> tuple[int, int]:
        step = row.difference.first_step
        return step, self._order.get((step, row.tensor), row.tensor)

    def _begin(self, members: list[DifferingTensor], step: int, block: Block | None) -> tuple[int, Odd]:
        """Return the place in the order of execution of the first difference, and what follows from it.

        Without `block`, the order of execution is not known, and the order of tensors takes its place.
        """
        begun = [row for row in members if row.difference.first_step == step]
        rank = begun[0].difference.ranks[0]
        for row in begun:
            place = row.tensor if block is None else _row_of(block, rank, row.tensor)
            self._order.setdefault((step, row.tensor), place)
        tensor, first, _ = min(begun, key=lambda row: self._order[step, row.tensor])
        onset = _onset(members, step, first)
        if block is not None:
            source = self._source(rank, step, _row_of(block, rank, tensor))
            onset = replace(onset, source=source, values=_values(block, first, tensor))
        return self._order[step, tensor], onset

    def _source(self, rank: int, step: int, row: int) -> str:
        """Return the dump file of a row; "" if the rank does not have the step."""
        opened = self._snapshot.step(rank, step)
        if opened is None:
            return ""
        source = str(opened.tables.label("source")[row])
        opened.forget_tables()
        return source


def _by_ranks(rows: Iterable[DifferingTensor]) -> Iterable[list[DifferingTensor]]:
    """Group differences by the ranks that are off."""
    by_ranks: dict[tuple[tuple[int, ...], bool], list[DifferingTensor]] = {}
    for row in rows:
        by_ranks.setdefault((row.difference.ranks, row.difference.has_majority), []).append(row)
    return by_ranks.values()


def _onset(members: list[DifferingTensor], step: int, first: Difference) -> Odd:
    """Return where the ranks of these differences began to be off, without the file and the values."""
    return Odd(
        first.ranks,
        first.has_majority,
        first.others,
        step,
        first,
        source="",
        values={},
        tensors=len({row.tensor for row in members}),
        steps=len({number for row in members for number in row.numbers}),
        last_step=max(row.difference.last_step for row in members),
        healed=all(row.difference.healed for row in members),
    )


def _row_of(block: Block, rank: int, tensor: int) -> int:
    """Return the row of a tensor in the tables of a rank: rows are in the order of execution."""
    return int(block.row[block.ranks.index(rank), tensor])


def _values(block: Block, first: Difference, tensor: int) -> dict[str, tuple[float, float]]:
    """Return the statistics that differ between the odd rank and the others; of two, between these."""
    odd = block.statistics[block.ranks.index(first.ranks[0]), tensor]
    other_rank = (first.others or first.ranks[1:])[0]
    others = block.statistics[block.ranks.index(other_rank), tensor]
    return {
        name: (float(a), float(b))
        for name, a, b in zip(FIELDS, odd, others, strict=True)
        if a != b and not (np.isnan(a) and np.isnan(b))
    }
