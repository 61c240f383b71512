"""A number for each rank and step of a run, and its aggregation to as many cells as fit on a screen."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.page.moment import Moment
from ingest.questions.trend import COUNTS, STATISTICS, statistic_named
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.model import CommitSummary

#: What each commit says of its step, so that nothing else is read: its name, its words, and its value.
SUMMARIES: dict[str, tuple[str, Callable[[CommitSummary], float]]] = {
    "non_finite": ("NaN and Inf", lambda of: of.nan_count + of.pos_inf_count + of.neg_inf_count),
    "anomalous_tensors": ("tensors with NaN or Inf", lambda of: of.anomalous_tensors),
    "findings": ("findings of rules", lambda of: sum(of.findings.values())),
    "overflows": ("overflow records", lambda of: of.overflows),
    "problems": ("problems of files", lambda of: of.quarantined + of.unparsed + of.disagreements),
    "tensors": ("tensors", lambda of: of.tensors + of.statistics_only),
    "stored_bytes": ("bytes in the store", lambda of: of.stored_bytes),
}
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
#: The states of a cell.
MISSING, KNOWN, PARTIAL, DAMAGED = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A number for each cell. A cell is a rank and a step, or several of them together."""

    title: str
    ranks: tuple[tuple[int, int], ...]
    """By row: the first and the last rank."""
    steps: tuple[tuple[int, int], ...]
    """By column: the first and the last step."""
    values: npt.NDArray[np.float64]
    """(row, column): the number; of several ranks and steps, the greatest. NaN if it is not known."""
    state: npt.NDArray[np.int64]
    """(row, column): `MISSING` (all of them), `KNOWN`, `PARTIAL`, or `DAMAGED`; of several, the worst."""
    gaps: npt.NDArray[np.int64]
    """(row, column): how many of the ranks and steps of a cell are missing."""
    bad: npt.NDArray[np.bool_]
    """(row, column): whether there is NaN or Inf."""
    is_count: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "title": self.title,
            "ranks": [list(ends) for ends in self.ranks],
            "steps": [list(ends) for ends in self.steps],
            "values": self.values.tolist(),
            "state": self.state.tolist(),
            "missing": self.gaps.tolist(),
            "not_finite": self.bad.tolist(),
        }

    def binned(self, rows: int, columns: int) -> Matrix:
        """Return at most this many rows and columns; each cell is the worst of those in it."""
        if len(self.ranks) <= rows and len(self.steps) <= columns:
            return self
        by_row = _starts(len(self.ranks), rows)
        by_column = _starts(len(self.steps), columns)

        def worst(array: npt.NDArray[Any], reduce: np.ufunc) -> npt.NDArray[Any]:
            reduced: npt.NDArray[Any] = reduce.reduceat(
                reduce.reduceat(array, by_row, axis=0), by_column, axis=1
            )
            return reduced

        return Matrix(
            self.title,
            _joined(self.ranks, by_row),
            _joined(self.steps, by_column),
            worst(self.values, np.fmax),
            worst(self.state, np.maximum),
            worst(self.gaps, np.add),
            worst(self.bad, np.logical_or),
            self.is_count,
        )


def matrix_of(moment: Moment, what: str, pattern: str, ranks: Sequence[int], steps: Sequence[int]) -> Matrix:
    """Return a number for each of these ranks and steps.

    Args:
        moment: the run.
        what: one of `SUMMARIES`, or a statistic of tensors.
        pattern: for a statistic, a glob for the names of the tensors.
        ranks: the ranks, in order.
        steps: the steps, in order.

    Raises:
        UsageError: `what` is neither, or no tensor matches.
        DamagedStore: no step can be read.
    """
    cells = _Cells(
        {rank: place for place, rank in enumerate(ranks)}, {step: place for place, step in enumerate(steps)}
    )
    values = np.full(cells.shape, np.nan)
    state = np.full(cells.shape, MISSING, np.int64)
    bad = np.zeros(cells.shape, bool)
    summaries = _summaries(moment, cells)
    for cell, summary in summaries.items():
        state[cell] = KNOWN if summary.status == "complete" else PARTIAL
        bad[cell] = summary.anomalous_tensors > 0
    for damage in moment.damages:
        if damaged := cells.cell(damage.key):
            state[damaged] = DAMAGED
    if what in SUMMARIES:
        title, get = SUMMARIES[what]
        is_count = True
        for cell, summary in summaries.items():
            values[cell] = get(summary)
    else:
        title = f"{what} of {pattern}"
        is_count = _fill(moment, cells, statistic=statistic_named(what), pattern=pattern, values=values)
    return Matrix(
        title,
        tuple(zip(ranks, ranks, strict=True)),
        tuple(zip(steps, steps, strict=True)),
        values,
        state,
        (state == MISSING).astype(np.int64),
        bad,
        is_count,
    )


@dataclass(frozen=True, slots=True)
class _Cells:
    """Where each rank and step stands in a matrix."""

    rows: dict[int, int]
    """By rank."""
    columns: dict[int, int]
    """By step."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return len(self.rows), len(self.columns)

    def cell(self, key: StepKey) -> tuple[int, int] | None:
        """Return row and column of a step of a rank; None if the matrix does not have it."""
        if key.step is None or key.rank not in self.rows or key.step not in self.columns:
            return None
        return self.rows[key.rank], self.columns[key.step]


def _summaries(moment: Moment, cells: _Cells) -> dict[tuple[int, int], CommitSummary]:
    """Return by cell what its commit says."""
    return {cell: step.commit.summary for step in moment.steps if (cell := cells.cell(step.key))}


def _fill(
    moment: Moment, cells: _Cells, *, statistic: str, pattern: str, values: npt.NDArray[np.float64]
) -> bool:
    """Write a statistic of tensors to its places; return whether it is a count."""
    by_step = moment.fields.of(moment.store, moment.generations, pattern, statistic)
    for step, column in cells.columns.items():
        if (known := by_step.get(step)) is not None:
            rows = [cells.rows.get(rank, -1) for rank in known.ranks.tolist()]
            chosen = [number for number, row in enumerate(rows) if row >= 0]
            values[[rows[number] for number in chosen], column] = known.values[chosen]
    return statistic in COUNTS


def known_statistics() -> tuple[str, ...]:
    """Return what a matrix can show: what commits say first, then the statistics of tensors."""
    return (*SUMMARIES, *(name for name in STATISTICS if name not in SUMMARIES))


def parse_range(words: str, known: Sequence[int], what: str) -> list[int]:
    """Return those of the known numbers that a text such as `3-9` or `4` means; all if it is empty.

    Raises:
        UsageError: it is not such a text, or there are none.
    """
    if not words:
        return list(known)
    ends = _RANGE.fullmatch(words)
    if ends is None:
        raise UsageError(f"{what} {words[:80]!r} is not a range", hint=f"Such as {what}=3-9, or {what}=4.")
    low, high = int(ends[1]), int(ends[2] or ends[1])
    chosen = [number for number in known if low <= number <= high]
    if not chosen:
        raise UsageError(f"the run has no {what} {words}")
    return chosen


def _starts(length: int, most: int) -> npt.NDArray[np.int64]:
    return np.arange(0, length, math.ceil(length / most))


def _joined(ends: Sequence[tuple[int, int]], starts: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    stops = [*starts[1:].tolist(), len(ends)]
    return tuple(
        (ends[start][0], ends[stop - 1][1]) for start, stop in zip(starts.tolist(), stops, strict=True)
    )
