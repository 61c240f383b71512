"""`dump-ingest heatmap`: one statistic over ranks and steps."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ingest.cli.common import (
    ConfigOption,
    JsonOption,
    PartialOption,
    RankOption,
    StepOption,
    number,
    print_json,
    printable,
    say,
    the_store,
)
from ingest.cli.trend import (
    CsvOption,
    HtmlOption,
    PatternArgument,
    PngOption,
    StatOption,
    count,
    marked,
    write,
)

if TYPE_CHECKING:
    import xarray as xr

NAME = "heatmap"
_MAX_CELLS = 60
_SHADES = "░▒▓█"
#: From low to high, as in viridis: they differ in lightness, too.
_COLOURS = ("#440154", "#31688e", "#35b779", "#fde725")
_GAP, _BAD, _UNKNOWN = "·", "!", "?"


def command(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store: a directory or URL.")],
    pattern: PatternArgument,
    stat: StatOption = "l2_norm",
    aggregate: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Over several tensors: max, min, sum or mean. Default: sum of counts, else max.",
            show_default=False,
        ),
    ] = None,
    rank: RankOption = None,
    step: StepOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Print no more than this many ranks; 0: all.")] = 128,
    png: PngOption = None,
    html: HtmlOption = None,
    csv: CsvOption = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show a statistic of a tensor, or of all that fit together, over ranks and steps.

    [bold]!![/] marks NaN or Inf, [bold]··[/] where a rank has no such tensor in that step.

    [bold]dump-ingest heatmap run.zarr '*' --stat nan_count[/]
    [bold]dump-ingest heatmap run.zarr 'AllReduce.*' --stat norm --aggregate mean --png norms.png[/]
    """
    from ingest.questions.trend import heatmap_of, statistic_named

    name = statistic_named(stat)
    snapshot = the_store(store, config).snapshot(rank, step, include_partial=include_partial)
    field = heatmap_of(snapshot, pattern, name, aggregate)
    title = f"{name} of {pattern}"
    if field.attrs["tensors"] > 1:
        title = f"{field.attrs['aggregate']} of {name} of {field.attrs['tensors']} tensors like {pattern}"
    if json:
        print_json(_rows(field))
    else:
        _print(title, field, limit)
    if csv:
        write(csv, field.to_dataframe(name="value").reset_index().to_csv(index=False))
    if png or html:
        from ingest.questions import plot

        figure = plot.heatmap_figure(title, field)
        if png:
            write(png, plot.png(figure))
        if html:
            write(html, _page(title, field, figure))
    for left_out in snapshot.left_out:
        say(str(left_out), before="[yellow]left out:[/] ")


def _rows(field: xr.DataArray) -> list[dict[str, Any]]:
    ranks, steps = field["rank"].values.tolist(), field["step"].values.tolist()
    values, tensors = field.values.tolist(), field["tensors"].values.tolist()
    non_finite = field["non_finite"].values.tolist()
    return [
        {
            "rank": rank,
            "step": step,
            "value": values[i][j],
            "tensors": tensors[i][j],
            "non_finite": count(non_finite[i][j]),
            "statistic": field.attrs["statistic"],
            "aggregate": field.attrs["aggregate"],
        }
        for i, rank in enumerate(ranks)
        for j, step in enumerate(steps)
    ]


def _page(title: str, field: xr.DataArray, figure: Any) -> str:
    from ingest.questions import plot

    steps = field["step"].values.tolist()
    tensors, bad = field["tensors"].values, marked(field.attrs["statistic"], field["non_finite"].values)
    rows = [
        (
            str(rank),
            *(
                "" if not tensors[i, j] else number(value) + "!" * bool(bad[i, j])
                for j, value in enumerate(field.values[i].tolist())
            ),
        )
        for i, rank in enumerate(field["rank"].values.tolist())
    ]
    marks = "A red cross or ! marks NaN or Inf; what is grey or empty, a rank does not have."
    return plot.page(printable(title), figure, ("rank", *map(str, steps)), rows, [marks])


def _print(title: str, field: xr.DataArray, limit: int) -> None:
    """Print a line of blocks for each rank, and what they mean."""
    import numpy as np

    console = Console(highlight=False, width=10_000)
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    levels, edges = _levels(field.values)
    steps = field["step"].values
    cuts = np.linspace(0, len(steps), min(len(steps), _MAX_CELLS) + 1).astype(int)
    wide = 2 if len(cuts) <= _MAX_CELLS // 2 + 1 else 1
    ranks = field["rank"].values.tolist()
    shown = ranks[:limit] if limit else ranks
    left = max(len("rank"), *(len(str(rank)) for rank in shown))
    lines = [Text(printable(title))]
    span = f"step {steps[0]}" + (f" to {steps[-1]}" if len(steps) > 1 else "")
    lines.append(Text(f"{'rank':<{left}}  {span}", "bold"))
    present, bad = field["tensors"].values > 0, marked(field.attrs["statistic"], field["non_finite"].values)
    for row, rank in enumerate(shown):
        line = Text(f"{rank:<{left}}  ")
        for begin, end in pairwise(cuts):
            cell = slice(begin, end)
            level = int(levels[row, cell].max())
            line.append_text(
                _cell(
                    level,
                    wide,
                    present=bool(present[row, cell].any()),
                    bad=bool(bad[row, cell].any()),
                    in_colour=in_colour,
                )
            )
        lines.append(line)
    lines.append(_legend(edges, bad=bool(bad.any()), gaps=bool((~present).any()), in_colour=in_colour))
    with console.capture() as capture:
        for line in lines:
            console.print(line, soft_wrap=True)
    sys.stdout.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")
    if len(shown) < len(ranks):
        say(f"{len(ranks)} ranks, the first {len(shown)} shown (--limit 0: all)")


def _levels(values: Any) -> tuple[Any, list[float]]:
    """Return for each value one of four levels, -1 where it is not known, and the edges between them."""
    import numpy as np

    known = np.isfinite(values)
    if not known.any():
        return np.full(values.shape, -1), []
    low, high = float(values[known].min()), float(values[known].max())
    # Halved first: the difference of two large numbers is infinite.
    edges = [2 * (low / 2 + (high / 2 - low / 2) * part / len(_SHADES)) for part in range(len(_SHADES) + 1)]
    level = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(_SHADES) - 1)
    return np.where(known, level, -1), edges if low < high else [low]


def _cell(level: int, wide: int, *, present: bool, bad: bool, in_colour: bool) -> Text:
    if not present:
        return Text(_GAP * wide, "dim")
    if bad:
        return Text(_BAD * wide, "bold white on red")
    if level < 0:
        return Text(_UNKNOWN * wide)
    return Text("█" * wide, _COLOURS[level]) if in_colour else Text(_SHADES[level] * wide)


def _legend(edges: list[float], *, bad: bool, gaps: bool, in_colour: bool) -> Text:
    parts = []
    if len(edges) == 1:
        parts.append((len(_SHADES) - 1, number(edges[0])))  # as `_levels` has it where all are equal
    else:
        parts += [
            (level, f"{number(low)} to {number(high)}") for level, (low, high) in enumerate(pairwise(edges))
        ]
    legend = Text()
    for level, words in parts:
        legend.append_text(_cell(level, 1, present=True, bad=False, in_colour=in_colour))
        legend.append(f" {words}   ")
    if bad:
        legend.append(f"{_BAD} NaN or Inf   ")
    if gaps:
        legend.append(f"{_GAP} not there   ")
    return legend
