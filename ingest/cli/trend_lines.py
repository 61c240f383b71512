"""The lines that `trend` draws: in a table, in a plot, and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.text import Text

from ingest.cli.files import write_and_say
from ingest.cli.non_finite import marked, whole_count
from ingest.cli.printing import print_table, print_wrapped
from ingest.questions import plot
from ingest.questions.sparkline import sparkline
from ingest.questions.trend_figure import Line
from ingest.reader.text import number_text, printable

_NUMBERS = ("first", "last", "min", "max")


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a trend as JSON has them."""
    return [
        {
            **{str(column): value for column, value in row.items()},
            "non_finite": whole_count(row["non_finite"]),
            "statistic": frame.attrs["statistic"],
        }
        for row in frame.to_dict("records")
    ]


def lines_of(frame: pd.DataFrame) -> list[Line]:
    """Return a line for each tensor and rank. All lines cover the same steps: those of any of them."""
    steps = np.unique(frame["step"].to_numpy())
    has_graphs = frame[["net", "graph"]].drop_duplicates().shape[0] > 1
    # Rows of one line are adjacent. Tensors of several graphs may have the same name.
    keys = list(zip(frame["name"], frame["net"], frame["graph"], frame["rank"], strict=True))
    step_of_row = frame["step"].to_numpy()
    value, non_finite = frame["value"].to_numpy(float), frame["non_finite"].to_numpy(float)
    lines = []
    for begin, end in _line_bounds(keys, step_of_row):
        places = np.searchsorted(steps, step_of_row[begin:end])
        values, present = np.full(len(steps), np.nan), np.zeros(len(steps), bool)
        bad = np.zeros(len(steps), bool)
        values[places] = value[begin:end]
        present[places] = True
        bad[places] = marked(frame.attrs["statistic"], non_finite[begin:end])
        name, net, graph, rank = keys[begin]
        place = f"  ({net or '-'}, graph {graph})" if has_graphs else ""
        lines.append(Line(f"{rank}  {name}{place}", values, present, bad))
    return lines


def _line_bounds(keys: Sequence[object], step_of_row: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the first row of each line, and the row after its last."""
    starts = [
        row
        for row in range(1, len(keys))
        if keys[row] != keys[row - 1] or step_of_row[row] <= step_of_row[row - 1]
    ]
    return list(zip([0, *starts], [*starts, len(keys)], strict=True))


def print_lines(title: str, lines: Sequence[Line], steps: Sequence[int]) -> None:
    """Print a title, and a table with a drawing of each line."""
    print_wrapped(title)
    rows: list[tuple[str | Text, ...]] = []
    for line in lines:
        drawing = Text(_drawing(line))
        drawing.highlight_regex("!", "bold red")
        drawing.highlight_regex("-", "dim")
        rows.append((*_cells(line), drawing))
    span = f"step {steps[0]}" + (f" to {steps[-1]}" if len(steps) > 1 else "")
    print_table(
        ("rank", "name", *_NUMBERS, span), rows, right=_NUMBERS, spare=("last", "first", "min", "max")
    )


def write_plots(
    title: str,
    lines: Sequence[Line],
    steps: Sequence[int],
    statistic: str,
    *,
    png: Path | None,
    html: Path | None,
) -> None:
    """Write a plot as PNG, and a page with the plot and a table.

    Raises:
        UsageError: matplotlib is not installed, or a file cannot be written.
    """
    figure = plot.trend_figure(title, steps, lines, statistic)
    if png:
        write_and_say(png, plot.png(figure))
    if html:
        write_and_say(html, page(title, figure, lines))


def page(title: str, figure: plot.Figure, lines: Sequence[Line]) -> str:
    """Return a page with a plot of lines and a table of them."""
    columns = ("rank", "name", *_NUMBERS, "trend")
    rows = [tuple(map(printable, (*_cells(line), _drawing(line)))) for line in lines]
    marks = "A red cross or ! marks NaN or Inf; a gap or - marks a step in which the rank lacks the tensor."
    return plot.page(printable(title), figure, columns, rows, [marks])


def _cells(line: Line) -> tuple[str, ...]:
    """Return rank, name, first, last, least and greatest value."""
    rank, _, name = line.label.partition("  ")
    values = line.heights[line.present]
    known = values[np.isfinite(values)]
    low, high = (float(np.min(known)), float(np.max(known))) if known.size else (None, None)
    numbers = (float(values[0]), float(values[-1]), low, high)
    return rank, name, *map(number_text, numbers)


def _drawing(line: Line) -> str:
    return sparkline(line.heights.tolist(), line.present.tolist(), line.bad.tolist())
