"""A number for each rank and step of a run, and its aggregation to as many cells as fit on a screen."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import matching_tensors, statistic_for, statistic_named
from ingest.questions.question import Table
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import RankValues, StepStatistics, of_all_tensors, of_named_tensors
from ingest.reader.tensor_filter import with_pattern
from ingest.reader.text import number_text
from workers.arrays.aggregate import COUNTS, STATISTICS, aggregated, default_aggregate, parts_of
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.model import CommitSummary


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


#: What each commit says of its step, so that nothing else is read: its name, its words, and its value.
SUMMARIES: dict[str, tuple[str, Callable[[CommitSummary], float]]] = {
    "non_finite": ("NaN and Inf", lambda of: of.nan_count + of.pos_inf_count + of.neg_inf_count),
    "anomalous_tensors": ("tensors with NaN or Inf", lambda of: of.anomalous_tensors),
    "findings": ("findings of rules", lambda of: sum(of.findings.values())),
    "overflows": ("overflow records", lambda of: of.overflows),
    "problems": ("problems of files", lambda of: of.problems),
    "tensors": ("tensors", lambda of: of.tensors + of.statistics_only),
    "stored_bytes": ("bytes in the store", lambda of: of.stored_bytes),
}
_SIZE = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,3})", re.ASCII)
#: What a picture of a matrix has at most: rows and columns.
MOST_CELLS = (88, 240)
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
#: The states of a cell.
MISSING, KNOWN, PARTIAL, DAMAGED = 0, 1, 2, 3
STATES = ("missing", "complete", "partial", "damaged")


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A number for each cell. A cell is a rank and a step, or several of them together."""

    title: str
    ranks: tuple[tuple[int, int], ...]
    """By row: the first and the last rank."""
    steps: tuple[tuple[int, int], ...]
    """By column: the first and the last step."""
    values: npt.NDArray[np.float64]
    """(row, column): the number; of several ranks and steps, the worst. NaN if it is not known."""
    state: npt.NDArray[np.int64]
    """(row, column): `MISSING` (all of them), `KNOWN`, `PARTIAL`, or `DAMAGED`; of several, the worst."""
    gaps: npt.NDArray[np.int64]
    """(row, column): how many of the ranks and steps of a cell are missing."""
    bad: npt.NDArray[np.bool_]
    """(row, column): whether there is NaN or Inf."""
    is_count: bool
    is_least: bool = False
    """Whether the least number of several is the worst, as it is for `min`; else the greatest is."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it: with `gaps` as `missing`, and `bad` as `not_finite`."""
        return {
            "title": self.title,
            "ranks": [list(ends) for ends in self.ranks],
            "steps": [list(ends) for ends in self.steps],
            "values": self.values.tolist(),
            "state": self.state.tolist(),
            "missing": self.gaps.tolist(),
            "not_finite": self.bad.tolist(),
        }

    left_out = damaged = ()
    is_alarm = False

    def report(self) -> Iterator[Table[tuple[str, ...]]]:
        """Yield a row for each cell."""
        headings = ("ranks", "steps", self.title, "state", "missing", "NaN or Inf")
        rows = [
            (
                _ends(ranks),
                _ends(steps),
                number_text(float(self.values[row, column])),
                STATES[int(self.state[row, column])],
                str(self.gaps[row, column]),
                "yes" if self.bad[row, column] else "",
            )
            for row, ranks in enumerate(self.ranks)
            for column, steps in enumerate(self.steps)
        ]
        columns = {name: itemgetter(place) for place, name in enumerate(headings)}
        yield Table(columns, rows, "cell", right=(self.title, "missing"))

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return self.to_dict()

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
            title=self.title,
            ranks=_joined(self.ranks, by_row),
            steps=_joined(self.steps, by_column),
            values=worst(self.values, np.fmin if self.is_least else np.fmax),
            state=worst(self.state, np.maximum),
            gaps=worst(self.gaps, np.add),
            bad=worst(self.bad, np.logical_or),
            is_count=self.is_count,
            is_least=self.is_least,
        )


def matrix(
    store: Catalog,
    stat: str = "non_finite",
    pattern: str | None = None,
    *,
    rank: Choice = None,
    step: Choice = None,
    cells: tuple[int, int] | None = None,
) -> Matrix:
    """Return a number for each rank and step, put together to at most as many cells as are wanted.

    Steps with quarantined or missing files are taken, and say so. What commits say costs nothing more; a
    statistic reads what `rank_values` does.

    Args:
        store: the store.
        stat: one of `SUMMARIES`, or a statistic of tensors.
        pattern: for a statistic, a glob for the names of the tensors; all if None.
        rank: one rank, or several; all if None.
        step: one step, or several; all if None.
        cells: the most rows and columns; None for a cell for each rank and step.

    Raises:
        UsageError: `stat` is neither, or no tensor matches.
        DamagedStore: no step can be read.
    """
    snapshot = take_snapshot(store, rank, step, include_partial=True)
    damaged = [left.key for left in snapshot.left_out if left.is_damaged]
    keys = [*snapshot.chosen, *damaged]
    wanted = WantedCells(
        stat,
        pattern or "*",
        sorted({key.rank for key in keys}),
        sorted({key.step for key in keys if key.step is not None}),
    )
    whole = matrix_of_steps(
        snapshot.chosen.values(),
        damaged,
        wanted,
        lambda name: ask_of_undamaged(snapshot, lambda readable: rank_values_of(readable, pattern, name)),
    )
    return whole if cells is None else whole.binned(*cells)


@dataclass(frozen=True, slots=True)
class WantedCells:
    """Which numbers a matrix has."""

    stat: str
    """One of `SUMMARIES`, or a statistic of tensors."""
    pattern: str
    """For a statistic, a glob for the names of the tensors."""
    ranks: Sequence[int]
    """In order."""
    steps: Sequence[int]
    """In order."""


def matrix_of_steps(
    opened: Iterable[Step],
    damaged: Iterable[StepKey],
    wanted: WantedCells,
    values_of: Callable[[str], Mapping[int, RankValues]],
) -> Matrix:
    """Return a number for each of the wanted ranks and steps.

    Args:
        opened: the committed steps.
        damaged: the steps that cannot be read.
        wanted: what the numbers are.
        values_of: returns a statistic of the tensors by step.

    Raises:
        UsageError: the statistic is unknown.
    """
    what, ranks, steps = wanted.stat, wanted.ranks, wanted.steps
    cells = _Cells(
        {rank: place for place, rank in enumerate(ranks)}, {step: place for place, step in enumerate(steps)}
    )
    values = np.full(cells.shape, np.nan)
    bad = np.zeros(cells.shape, bool)
    summaries = {cell: step.commit.summary for step in opened if (cell := cells.cell(step.key))}
    state = cells.states(summaries, damaged)
    for cell, summary in summaries.items():
        bad[cell] = summary.anomalous_tensors > 0
    is_least = False
    if what in SUMMARIES:
        title, get = SUMMARIES[what]
        is_count = True
        for cell, summary in summaries.items():
            values[cell] = get(summary)
    else:
        statistic = statistic_named(what)
        title, is_count = _title(statistic, wanted.pattern), statistic in COUNTS
        is_least = default_aggregate(statistic) == "min"
        cells.fill(values, values_of(statistic))
    return Matrix(
        title,
        tuple(zip(ranks, ranks, strict=True)),
        tuple(zip(steps, steps, strict=True)),
        values,
        state,
        (state == MISSING).astype(np.int64),
        bad,
        is_count,
        is_least,
    )


def _title(statistic: str, pattern: str) -> str:
    """Return the title of a cell: how it combines several tensors; for a single one, its statistic."""
    if not any(sign in pattern for sign in "*?["):
        return f"{statistic} of {pattern}"
    together = {"max": "greatest", "min": "least", "sum": "sum of"}[default_aggregate(statistic)]
    return f"{together} {statistic} of {'all tensors' if pattern == '*' else pattern}"


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

    def states(
        self, summaries: Mapping[tuple[int, int], CommitSummary], damaged: Iterable[StepKey]
    ) -> npt.NDArray[np.int64]:
        """Return what is known of each cell: MISSING, KNOWN, PARTIAL or DAMAGED."""
        state = np.full(self.shape, MISSING, np.int64)
        for cell, summary in summaries.items():
            state[cell] = KNOWN if summary.status == "complete" else PARTIAL
        for key in damaged:
            if cell_of_key := self.cell(key):
                state[cell_of_key] = DAMAGED
        return state

    def fill(self, values: npt.NDArray[np.float64], by_step: Mapping[int, RankValues]) -> None:
        """Write a statistic of steps to its places."""
        for step, column in self.columns.items():
            if (known := by_step.get(step)) is not None:
                rows = [self.rows.get(rank, -1) for rank in known.ranks.tolist()]
                chosen = [number for number, row in enumerate(rows) if row >= 0]
                values[[rows[number] for number in chosen], column] = known.values[chosen]


def known_statistics() -> tuple[str, ...]:
    """Return the names that a matrix can show: totals of commits first, then the statistics of tensors."""
    return (*SUMMARIES, *(name for name in STATISTICS if name not in SUMMARIES))


def _ends(ends: tuple[int, int]) -> str:
    first, last = ends
    return f"{first}" if first == last else f"{first}-{last}"


def parse_cells(words: str) -> tuple[int, int]:
    """Return the most rows and columns that a text such as `88x240` means.

    Raises:
        UsageError: it is not such a text.
    """
    size = _SIZE.fullmatch(words)
    if size is None:
        raise UsageError(
            f"cells {words[:80]!r} is not a size", hint="ROWSxCOLUMNS, such as 88x240; up to 9999x9999."
        )
    return int(size[1]), int(size[2])


def parse_range(words: str, known: Sequence[int], what: str) -> list[int]:
    """Select the known numbers that a text such as `3-9` or `4` names; all if it is empty.

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


def _starts(length: int, limit: int) -> npt.NDArray[np.int64]:
    return np.arange(0, length, math.ceil(length / limit))


def _joined(ends: Sequence[tuple[int, int]], starts: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    stops = [*starts[1:].tolist(), len(ends)]
    return tuple(
        (ends[start][0], ends[stop - 1][1]) for start, stop in zip(starts.tolist(), stops, strict=True)
    )


def value_rows(by_step: Mapping[int, RankValues], statistic: str) -> list[dict[str, Any]]:
    """Return the JSON of `rank_values`: a row for each rank and step, by rank, then step."""
    rows = [
        {"rank": rank, "step": step, "value": value, "statistic": statistic}
        for step, known in by_step.items()
        for rank, value in zip(known.ranks.tolist(), known.values.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: (row["rank"], row["step"]))


@dataclass(frozen=True, slots=True)
class RankValuesAnswer:
    """The values of a heatmap alone, as people see them."""

    statistic: str
    rows: Sequence[dict[str, Any]]
    left_out = damaged = ()
    is_alarm = False

    def report(self) -> Iterator[Table[dict[str, Any]]]:
        """Yield a row for each rank and step."""
        names = ("rank", "step", self.statistic)
        columns: dict[str, Callable[[dict[str, Any]], str]] = {
            "rank": lambda row: str(row["rank"]),
            "step": lambda row: str(row["step"]),
            self.statistic: lambda row: number_text(row["value"]),
        }
        yield Table(columns, self.rows, "value", right=names)

    def to_json(self) -> Sequence[dict[str, Any]]:
        """Return what `--json` prints."""
        return self.rows


def rank_values_answer(store: Catalog, stat: str | None = None, **asked: Any) -> RankValuesAnswer:
    """Return `rank_values` as people see them."""
    statistic = statistic_for(stat, {})
    return RankValuesAnswer(statistic, value_rows(rank_values(store, stat=statistic, **asked), statistic))
