"""`dump-ingest trend`: one statistic over the steps, a line for each tensor and rank."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ingest.cli.common import (
    ConfigOption,
    JsonOption,
    PartialOption,
    RankOption,
    StepOption,
    number,
    print_json,
    print_table,
    printable,
    say,
    the_store,
)

if TYPE_CHECKING:
    import pandas as pd

    from ingest.questions.plot import Line

NAME = "trend"

PatternArgument = Annotated[
    str, typer.Argument(metavar="PATTERN", help="A glob over the names of tensors, such as '*Adam*.input.0'.")
]
StatOption = Annotated[
    str, typer.Option("--stat", metavar="NAME", help="The statistic: l2_norm, max, std, nan_count, ...")
]
PngOption = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Write a plot as PNG.", show_default=False)
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page with a plot and a table.", show_default=False),
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write all values as CSV.", show_default=False)
]


def command(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store: a directory or URL.")],
    pattern: PatternArgument,
    stat: StatOption = "l2_norm",
    rank: RankOption = None,
    step: StepOption = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Draw no more than this many lines, in table and plot; 0: all.")
    ] = 50,
    png: PngOption = None,
    html: HtmlOption = None,
    csv: CsvOption = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show how a statistic of tensors goes over the steps: a line for each tensor and rank.

    [bold]![/] marks NaN or Inf, [bold]·[/] a step that the rank does not have.

    [bold]dump-ingest trend run.zarr '*Adam*.input.0' --stat norm[/]
    [bold]dump-ingest trend run.zarr 'Log.*' --stat min --rank 1 --html log.html[/]
    """
    from ingest.questions.trend import statistic_named, trend_of

    name = statistic_named(stat)
    snapshot = the_store(store, config).snapshot(rank, step, include_partial=include_partial)
    frame = trend_of(snapshot, pattern, name)
    lines, steps = _lines(frame, name), sorted(set(frame["step"].tolist()))
    shown = lines[:limit] if limit else lines
    if json:
        print_json(_rows(frame, name))
    else:
        _print(shown, steps)
        if len(shown) < len(lines):
            say(f"{len(lines)} lines, the first {len(shown)} shown (--limit 0: all)")
    if csv:
        write(csv, frame.to_csv(index=False))
    if png or html:
        _plot(f"{name} of {pattern}", shown, steps, name, png, html)
    for left_out in snapshot.left_out:
        say(str(left_out), before="[yellow]left out:[/] ")


def write(path: Path, content: str | bytes) -> None:
    """Write a file, and say so.

    Raises:
        UsageError: it cannot be written.
    """
    from workers.errors import UsageError

    # What is no Unicode in the name of a file of the dump is no reason to write nothing.
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc
    say(f"wrote {path}")


def marked(statistic: str, non_finite: Any) -> Any:
    """Return where to mark NaN and Inf: not where they are what is counted."""
    from ingest.questions.trend import ABOUT_NON_FINITE

    return (non_finite > 0) & (statistic not in ABOUT_NON_FINITE)


def count(value: float) -> int | None:
    """Return a count as a whole number; None where it is not known."""
    return None if math.isnan(value) else int(value)


def _rows(frame: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    rows = frame.to_dict("records")
    return [
        {
            **{str(key): value for key, value in row.items()},
            "non_finite": count(row["non_finite"]),
            "statistic": name,
        }
        for row in rows
    ]


def _lines(frame: pd.DataFrame, statistic: str) -> list[Line]:
    """Return a line for each tensor and rank, over all steps of any of them."""
    import numpy as np

    from ingest.questions.plot import Line

    steps = np.unique(frame["step"].to_numpy())
    several = frame[["net", "graph"]].drop_duplicates().shape[0] > 1
    # Rows of one line stand together; tensors may have the same name in several graphs.
    key = list(zip(frame["name"], frame["net"], frame["graph"], frame["rank"], strict=True))
    number = frame["step"].to_numpy()
    ends = [at for at in range(1, len(key)) if key[at] != key[at - 1] or number[at] <= number[at - 1]]
    value, non_finite = frame["value"].to_numpy(float), frame["non_finite"].to_numpy(float)
    lines = []
    for begin, end in zip([0, *ends], [*ends, len(key)], strict=True):
        places = np.searchsorted(steps, number[begin:end])
        values, present, bad = (
            np.full(len(steps), np.nan),
            np.zeros(len(steps), bool),
            np.zeros(len(steps), bool),
        )
        values[places], present[places], bad[places] = (
            value[begin:end],
            True,
            marked(statistic, non_finite[begin:end]),
        )
        name, net, graph, rank = key[begin]
        where = f"  ({net or '-'}, graph {graph})" if several else ""
        lines.append(Line(f"{rank}  {name}{where}", values, present, bad))
    return lines


def _cells(line: Line) -> tuple[str, ...]:
    """Return rank, name, first, last, least and greatest value."""
    import numpy as np

    rank, _, name = line.label.partition("  ")
    there = line.heights[line.present]
    known = there[np.isfinite(there)]
    low, high = (float(np.min(known)), float(np.max(known))) if known.size else (None, None)
    return rank, name, number(float(there[0])), number(float(there[-1])), number(low), number(high)


def _drawn(line: Line) -> str:
    from ingest.questions.sparkline import sparkline

    return sparkline(line.heights.tolist(), line.present.tolist(), line.bad.tolist())


def _print(lines: list[Line], steps: list[int]) -> None:
    rows: list[tuple[str | Text, ...]] = []
    for line in lines:
        drawn = Text(_drawn(line))
        drawn.highlight_regex("!", "bold red")
        drawn.highlight_regex("·", "dim")
        rows.append((*_cells(line), drawn))
    numbers = ("first", "last", "min", "max")
    span = f"step {steps[0]}" + (f" to {steps[-1]}" if len(steps) > 1 else "")
    print_table(("rank", "name", *numbers, span), rows, right=numbers)


def _plot(
    title: str, lines: list[Line], steps: list[int], name: str, png: Path | None, html: Path | None
) -> None:
    from ingest.questions import plot

    figure = plot.trend_figure(title, steps, lines, name)
    if png:
        write(png, plot.png(figure))
    if html:
        columns = ("rank", "name", "first", "last", "min", "max", "trend")
        rows = [tuple(map(printable, (*_cells(line), _drawn(line)))) for line in lines]
        marks = "A red cross or ! marks NaN or Inf; a gap or · a step that the rank does not have."
        write(html, plot.page(title, figure, columns, rows, [marks]))
