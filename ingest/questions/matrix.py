"""A number for each rank and step of a run, and its aggregation to as many cells as fit on a screen."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import matching_tensors, statistic_for, statistic_named
from ingest.questions.question import Shown, Table
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_statistics import RankValues, StepStatistics, of_all_tensors, of_named_tensors
from ingest.reader.tensor_filter import with_pattern
from ingest.reader.text import number_text
from workers.arrays.statistics import COUNTS, aggregated, default_aggregate, parts_of
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
class Matrix(Shown):
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

    left_out = ()

    def report(self) -> Iterator[Table[tuple[int, ...]]]:
        """Yield a row for each cell."""
        columns: dict[str, Callable[[tuple[int, ...]], str]] = {
            "ranks": lambda cell: "-".join(map(str, sorted({*self.ranks[cell[0]]}))),
            "steps": lambda cell: "-".join(map(str, sorted({*self.steps[cell[1]]}))),
            self.title: lambda cell: number_text(float(self.values[cell])),
            "state": lambda cell: STATES[int(self.state[cell])],
            "missing": lambda cell: str(self.gaps[cell]),
            "NaN or Inf": lambda cell: "yes" if self.bad[cell] else "",
        }
        yield Table(columns, [*np.ndindex(self.values.shape)], "cell", right=(self.title, "missing"))

    def binned(self, rows: int, columns: int) -> Matrix:
        """Return at most this many rows and columns; each cell is the worst of those in it."""
        if len(self.ranks) <= rows and len(self.steps) <= columns:
            return self
        widths = math.ceil(len(self.ranks) / rows), math.ceil(len(self.steps) / columns)
        starts = [
            np.arange(0, length, width) for length, width in zip(self.values.shape, widths, strict=True)
        ]

        def worst(array: npt.NDArray[Any], reduce: np.ufunc) -> npt.NDArray[Any]:
            reduced: npt.NDArray[Any] = reduce.reduceat(array, starts[0], axis=0)
            return reduce.reduceat(reduced, starts[1], axis=1)

        joined = [
            tuple(
                (first, last)
                for (first, _), (_, last) in zip_longest(
                    ends[::width], ends[width - 1 :: width], fillvalue=ends[-1]
                )
            )
            for ends, width in zip((self.ranks, self.steps), widths, strict=True)
        ]
        return replace(
            self,
            ranks=joined[0],
            steps=joined[1],
            values=worst(self.values, np.fmin if self.is_least else np.fmax),
            state=worst(self.state, np.maximum),
            gaps=worst(self.gaps, np.add),
            bad=worst(self.bad, np.logical_or),
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
    whole = matrix_of_steps(
        snapshot.chosen.values(),
        damaged,
        lambda name: ask_of_undamaged(snapshot, lambda readable: rank_values_of(readable, pattern, name)),
        stat=stat,
        pattern=pattern or "*",
        ranks=sorted({key.rank for key in keys}),
        steps=sorted({key.step for key in keys if key.step is not None}),
    )
    return whole if cells is None else whole.binned(*cells)


def matrix_of_steps(
    opened: Iterable[Step],
    damaged: Iterable[StepKey],
    values_of: Callable[[str], Mapping[int, RankValues]],
    *,
    stat: str,
    pattern: str,
    ranks: Sequence[int],
    steps: Sequence[int],
) -> Matrix:
    """Return a number for each of these ranks and steps.

    Args:
        opened: the committed steps.
        damaged: the steps that cannot be read.
        values_of: returns a statistic of the tensors by step.
        stat: one of `SUMMARIES`, or a statistic of tensors.
        pattern: for a statistic, a glob for the names of the tensors.
        ranks: in order.
        steps: in order.

    Raises:
        UsageError: the statistic is unknown.
    """
    row_of = {rank: row for row, rank in enumerate(ranks)}
    column_of: dict[int | None, int] = {step: column for column, step in enumerate(steps)}
    values = np.full((len(ranks), len(steps)), np.nan)
    bad, state = np.zeros(values.shape, bool), np.full(values.shape, MISSING, np.int64)
    statistic = None if stat in SUMMARIES else statistic_named(stat)
    for step in opened:
        if step.key.rank not in row_of or step.key.step not in column_of:
            continue
        cell, summary = (row_of[step.key.rank], column_of[step.key.step]), step.commit.summary
        state[cell] = KNOWN if summary.status == "complete" else PARTIAL
        bad[cell] = summary.anomalous_tensors > 0
        if statistic is None:
            values[cell] = SUMMARIES[stat][1](summary)
    for key in damaged:
        if key.rank in row_of and key.step in column_of:
            state[row_of[key.rank], column_of[key.step]] = DAMAGED
    for number, known in ({} if statistic is None else values_of(statistic)).items():
        if number in column_of:
            rows = np.array([row_of.get(rank, -1) for rank in known.ranks.tolist()])
            values[rows[rows >= 0], column_of[number]] = known.values[rows >= 0]
    return Matrix(
        SUMMARIES[stat][0] if statistic is None else _title(statistic, pattern),
        tuple(zip(ranks, ranks, strict=True)),
        tuple(zip(steps, steps, strict=True)),
        values,
        state,
        (state == MISSING).astype(np.int64),
        bad,
        is_count=statistic is None or statistic in COUNTS,
        is_least=statistic is not None and default_aggregate(statistic) == "min",
    )


def _title(statistic: str, pattern: str) -> str:
    if not any(sign in pattern for sign in "*?["):
        return f"{statistic} of {pattern}"
    together = {"max": "greatest", "min": "least", "sum": "sum of"}[default_aggregate(statistic)]
    return f"{together} {statistic} of {'all tensors' if pattern == '*' else pattern}"


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


def value_rows(by_step: Mapping[int, RankValues], statistic: str) -> list[dict[str, Any]]:
    """Return the JSON of `rank_values`: a row for each rank and step, by rank, then step."""
    rows = [
        {"rank": rank, "step": step, "value": value, "statistic": statistic}
        for step, known in by_step.items()
        for rank, value in zip(known.ranks.tolist(), known.values.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: (row["rank"], row["step"]))


@dataclass(frozen=True, slots=True)
class RankValuesAnswer(Shown):
    """The values of a heatmap alone, as people see them."""

    statistic: str
    rows: Sequence[dict[str, Any]]
    left_out = ()

    def report(self) -> Iterator[Table[dict[str, Any]]]:
        """Yield a row for each rank and step."""
        columns: dict[str, Callable[[dict[str, Any]], str]] = {
            "rank": lambda row: str(row["rank"]),
            "step": lambda row: str(row["step"]),
            self.statistic: lambda row: number_text(row["value"]),
        }
        yield Table(columns, self.rows, "value", right=[*columns])

    def to_json(self) -> Sequence[dict[str, Any]]:
        """Return what `--json` prints."""
        return self.rows


def rank_values_answer(store: Catalog, stat: str | None = None, **asked: Any) -> RankValuesAnswer:
    """Return `rank_values` as people see them."""
    statistic = statistic_for(stat, {})
    return RankValuesAnswer(statistic, value_rows(rank_values(store, stat=statistic, **asked), statistic))
