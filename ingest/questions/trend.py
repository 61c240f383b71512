"""One statistic of tensors over steps: a row for each tensor, rank and step, and a line for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import (
    choice_text,
    marked,
    matching_tensors,
    statistic_for,
    statistic_named,
    statistics_for,
    unused_steps,
    whole_count,
)
from ingest.questions.question import Part, Partial, Pattern, Question, Ranks, Shown, Statistic, Steps, Table
from ingest.questions.trend_figure import Line, trend_figure
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import FilterFields, with_pattern
from ingest.reader.text import number_text
from workers.errors import UsageError

if TYPE_CHECKING:  # neither is needed where a moment of the page is made
    import pandas as pd
    from rich.text import Text

    from ingest.questions.plot import Figure

#: The limit of values in one answer; a million take about 50 MB as a table.
MAX_VALUES = 2_000_000


BARS = "▁▂▃▄▅▆▇█"
GAP = "-"
"""The rank does not have the step, or not the tensor."""
BAD = "!"
"""Elements are NaN or infinite; the value may be unknown for that reason."""
UNKNOWN = "?"
"""The rank has the tensor, but its value is unknown."""


def trend(
    store: Catalog,
    pattern: Pattern = None,
    stat: Statistic = None,
    *,
    rank: Ranks = None,
    step: Steps = None,
    include_partial: Partial = False,
    **conditions: Unpack[FilterFields],
) -> pd.DataFrame:
    """Show how a statistic of tensors develops over the steps, by tensor and rank.

    `!` marks NaN or Inf, `-` a step in which the rank lacks the tensor.

    Returns:
        A row for each tensor, rank and step, by tensor in order of execution, rank and step: `name`, `net`,
        `graph`, `rank`, `step`, `value` (float64; NaN if it is unknown, such as the mean of NaN alone) and
        `non_finite` (the number of elements that are NaN or infinite; NaN if unknown). Tensors that a rank
        does not have are left out. Occurrences in a loop are separate tensors (`...#1`). `attrs` has
        `statistic`; `of`: what was asked for, in words; `left_out`: the steps that were not used; `damaged`:
        those of them that are damaged. It takes 60 bytes for each value, of which there are at most two
        millions.

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
    frame.attrs = {"statistic": statistic, "of": choice_text(chosen), **unused_steps(snapshot)}
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


@dataclass(frozen=True)
class TrendAnswer(Shown):
    """A trend as people see it."""

    frame: pd.DataFrame
    remarks = (
        "A red cross or ! marks NaN or Inf; a gap or - marks a step in which the rank lacks the tensor.",
    )

    @property
    def title(self) -> str:
        """What it is about."""
        return f"{self.frame.attrs['statistic']} of {self.frame.attrs['of']}"

    @property
    def left_out(self) -> Sequence[object]:
        """Steps that it is not about, and why."""
        return self.frame.attrs["left_out"]  # type: ignore[no-any-return]  # pandas lets it hold anything

    @property
    def damaged(self) -> Sequence[object]:
        """Those of them that are damaged."""
        return self.frame.attrs["damaged"]  # type: ignore[no-any-return]

    @cached_property
    def steps(self) -> list[int]:
        """The steps of any line."""
        return sorted(set(self.frame["step"].tolist()))

    @cached_property
    def lines(self) -> list[Line]:
        """A line for each tensor and rank. All lines cover the same steps."""
        return lines_of(self.frame)

    def table(self) -> Table[Line]:
        """Return a row for each line, with its drawing."""
        first, *others = self.steps
        numbers: dict[str, Callable[[Line], float | None]] = {
            "first": lambda line: float(line.heights[line.present][0]),
            "last": lambda line: float(line.heights[line.present][-1]),
            "min": lambda line: line.extreme(np.min),
            "max": lambda line: line.extreme(np.max),
        }
        return Table(
            {
                "rank": lambda line: line.rank,
                "name": lambda line: line.name,
                **{name: partial(_number, of) for name, of in numbers.items()},
                f"step {first}" + (f" to {others[-1]}" if others else ""): _drawing,
            },
            self.lines,
            "line",
            right=list(numbers),
            spare=("last", "first", "min", "max"),
        )

    def report(self) -> Iterable[Part]:
        """Return what people read: a title, and a table with a drawing of each line."""
        yield self.title
        yield self.table()

    def to_json(self) -> list[dict[str, Any]]:
        """Return a row for each tensor, rank and step."""
        return [
            {
                **{str(column): value for column, value in row.items()},
                "non_finite": whole_count(row["non_finite"]),
                "statistic": self.frame.attrs["statistic"],
            }
            for row in self.frame.to_dict("records")
        ]

    def csv(self) -> str:
        """Return all values."""
        return self.frame.to_csv(index=False)

    def figure(self, limit: int) -> Figure:
        """Draw the first lines; all with limit 0."""
        return trend_figure(
            self.title, self.steps, self.lines[: limit or None], self.frame.attrs["statistic"]
        )


def _number(of: Callable[[Line], float | None], line: Line) -> str:
    return number_text(of(line))


def _drawing(line: Line) -> Text:
    from rich.text import Text  # deferred: takes 0.03 s, for tables that are drawn

    drawn = Text(sparkline(line))
    drawn.highlight_regex("!", "bold red")
    drawn.highlight_regex("-", "dim")
    return drawn


def lines_of(frame: pd.DataFrame) -> list[Line]:
    """Return a line for each tensor and rank. All lines cover the same steps: those of any of them."""
    steps = np.unique(frame["step"].to_numpy())
    has_graphs = frame[["net", "graph"]].drop_duplicates().shape[0] > 1
    # Rows of one line are adjacent. Tensors of several graphs may have the same name.
    keys = list(zip(frame["name"], frame["net"], frame["graph"], frame["rank"], strict=True))
    step_of_row = frame["step"].to_numpy()
    value, non_finite = frame["value"].to_numpy(float), frame["non_finite"].to_numpy(float)
    starts = [
        row
        for row in range(len(keys))
        if not row or keys[row] != keys[row - 1] or step_of_row[row] <= step_of_row[row - 1]
    ]
    lines = []
    for begin, end in pairwise([*starts, len(keys)]):
        places = np.searchsorted(steps, step_of_row[begin:end])
        values, present = np.full(len(steps), np.nan), np.zeros(len(steps), bool)
        bad = np.zeros(len(steps), bool)
        values[places] = value[begin:end]
        present[places] = True
        bad[places] = marked(frame.attrs["statistic"], non_finite[begin:end])
        name, net, graph, rank = keys[begin]
        place = f"  ({net or '-'}, graph {graph})" if has_graphs else ""
        lines.append(Line(str(rank), f"{name}{place}", values, present, bad))
    return lines


def sparkline(line: Line, width: int = 60) -> str:
    """Draw values with bars from the least to the greatest of them.

    If there are more values than `width`, neighbours share a character: that of the greatest of them, or
    `BAD` if one of them is bad.
    """
    count = len(line.heights)
    edges = np.linspace(0, count, min(count, max(width, 1)) + 1).astype(int)
    is_finite = line.present & np.isfinite(line.heights)
    is_bad = line.present & (line.bad | np.isinf(line.heights))
    finite = line.heights[is_finite]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    # Halved first, because the difference of two large numbers may be infinite.
    span = high / 2 - low / 2
    characters = []
    for begin, end in pairwise(edges.tolist()):
        known = line.heights[begin:end][is_finite[begin:end]]
        share = (float(known.max()) / 2 - low / 2) / span if known.size and span > 0 else 3 / len(BARS)
        bar = BARS[min(int(share * len(BARS)), len(BARS) - 1)] if known.size else UNKNOWN
        is_there = line.present[begin:end].any()
        characters.append(BAD if is_bad[begin:end].any() else bar if is_there else GAP)
    return "".join(characters)


QUESTION = Question(
    trend,
    (
        "trend run.zarr '*Adam*.input.0' --stat norm",
        "trend run.zarr --role loss",
        "trend run.zarr 'Log.*' --stat min --rank 1 --html log.html",
    ),
    limit=64,
    noun="line",
    shown=TrendAnswer,
    check=lambda given: statistic_for(given.get("stat"), given),
)
