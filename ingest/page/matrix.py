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
from ingest.questions.trend import statistic_named
from workers.arrays.aggregate import COUNTS, STATISTICS, default_aggregate
from workers.errors import UsageError
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
    row = {rank: place for place, rank in enumerate(ranks)}
    column = {step: place for place, step in enumerate(steps)}
    values = np.full((len(ranks), len(steps)), np.nan)
    state = np.full(values.shape, MISSING, np.int64)
    bad = np.zeros(values.shape, bool)
    get = SUMMARIES[what][1] if what in SUMMARIES else None
    for opened in moment.steps:
        rank, step = opened.key.rank, opened.key.step
        if step is None or rank not in row or step not in column:
            continue
        place = row[rank], column[step]
        summary = opened.commit.summary
        state[place] = KNOWN if summary.status == "complete" else PARTIAL
        bad[place] = summary.anomalous_tensors > 0
        if get is not None:
            values[place] = get(summary)
    for damage in moment.damages:
        if damage.key.step is not None and damage.key.rank in row and damage.key.step in column:
            state[row[damage.key.rank], column[damage.key.step]] = DAMAGED
    title = SUMMARIES[what][0] if get is not None else _title(statistic_named(what), pattern)
    is_count = get is not None
    if get is None:
        is_count = _fill(
            moment, statistic=statistic_named(what), pattern=pattern, row=row, column=column, values=values
        )
    return Matrix(
        title,
        tuple((rank, rank) for rank in ranks),
        tuple((step, step) for step in steps),
        values,
        state,
        (state == MISSING).astype(np.int64),
        bad,
        is_count,
    )


def _title(statistic: str, pattern: str) -> str:
    """Return what a cell says of several tensors together; of a single one, its statistic."""
    if not any(sign in pattern for sign in "*?["):
        return f"{statistic} of {pattern}"
    together = {"max": "greatest", "min": "least", "sum": "sum of"}[default_aggregate(statistic)]
    return f"{together} {statistic} of {'all tensors' if pattern == '*' else pattern}"


def _fill(
    moment: Moment,
    *,
    statistic: str,
    pattern: str,
    row: dict[int, int],
    column: dict[int, int],
    values: npt.NDArray[np.float64],
) -> bool:
    """Write a statistic of tensors to its places; return whether it is a count."""
    by_step = moment.fields.of(moment.store, moment.generations, pattern, statistic)
    for step, place in column.items():
        if (kept := by_step.get(step)) is not None:
            known = kept.of_ranks
            ranks = [row.get(rank, -1) for rank in known.ranks.tolist()]
            chosen = [number for number, rank in enumerate(ranks) if rank >= 0]
            values[[ranks[number] for number in chosen], place] = known.values[chosen]
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
