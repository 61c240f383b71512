"""The field of ranks and steps that `heatmap` draws: on a terminal, in a plot, and on a page."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xarray as xr
from rich.console import Console
from rich.text import Text

from ingest.cli.files import write_and_say
from ingest.cli.fitting import wrapped
from ingest.cli.non_finite import marked
from ingest.cli.printing import is_terminal, limited, say_rest, terminal_width
from ingest.questions import plot
from ingest.questions.heatmap_scale import ALL, UNKNOWN, ZERO, HeatmapScale, wholes
from ingest.reader.text import number_text, printable

_MAX_CELLS = 60
#: Characters of a line where no terminal limits them.
_WHOLE = 10_000
_SHADES = "░▒▓█"
#: From low to high, as in viridis: their lightness differs, too.
_COLOURS = ("#440154", "#31688e", "#35b779", "#fde725")
_GAP, _ZERO, _BAD, _UNKNOWN = "-", "·", "!", "?"


def write_plots(title: str, field: xr.DataArray, *, png: Path | None, html: Path | None) -> None:
    """Write a plot as PNG, and a page with the plot and a table.

    Raises:
        UsageError: matplotlib is not installed, or a file cannot be written.
    """
    figure = plot.heatmap_figure(title, field)
    if png:
        write_and_say(png, plot.png(figure))
    if html:
        write_and_say(html, _page(title, field, figure))


def _page(title: str, field: xr.DataArray, figure: plot.Figure) -> str:
    steps = field["step"].values.tolist()
    tensors, bad, whole = field["tensors"].values, _bad(field), wholes(field)
    number = _count_text if HeatmapScale.of(field).is_count else number_text
    rows = [
        (
            str(rank),
            *(
                _cell_text(value, number, bad=bad[row, column], whole=whole[row, column])
                if tensors[row, column]
                else ""
                for column, value in enumerate(field.values[row].tolist())
            ),
        )
        for row, rank in enumerate(field["rank"].values.tolist())
    ]
    marks = ["A red cross or ! marks NaN or Inf; grey or empty: the rank has no such tensor in that step."]
    if whole.any():
        marks.append("Orange or (all): all elements of the tensors are counted.")
    return plot.page(printable(title), figure, ("rank", *map(str, steps)), rows, marks)


def _cell_text(value: float, number: Callable[[float], str], *, bad: bool, whole: bool) -> str:
    text = "-" if math.isnan(value) else number(value)
    return text + "!" * bool(bad) + " (all)" * bool(whole)


def _bad(field: xr.DataArray) -> npt.NDArray[np.bool_]:
    return marked(field.attrs["statistic"], field["non_finite"].values)


def print_field(title: str, field: xr.DataArray, limit: int) -> None:
    """Print a line of blocks for each rank, and a legend.

    Args:
        title: the line above the ranks.
        field: the field, (rank, step).
        limit: print at most this many ranks; 0: all.
    """
    console = Console(highlight=False, width=_WHOLE)
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    ranks: list[int] = field["rank"].values.tolist()
    shown = limited(ranks, limit)
    width = terminal_width() if is_terminal() else _WHOLE
    with console.capture() as capture:
        for line in _lines(title, field, shown, width, in_colour=in_colour):
            console.print(line, soft_wrap=True)
    sys.stdout.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")
    say_rest(len(ranks), len(shown), "ranks")


def _lines(
    title: str, field: xr.DataArray, shown: Sequence[int], room: int, *, in_colour: bool
) -> Iterator[Text]:
    """Yield the title, the heading, a line for each of the first ranks, and the legend."""
    scale = HeatmapScale.of(field)
    present, bad = field["tensors"].values > 0, _bad(field)
    steps = field["step"].values
    margin = max(len("rank"), *(len(str(rank)) for rank in shown))
    most = max(min(_MAX_CELLS, room - margin - 2), 1)
    cuts = np.linspace(0, len(steps), min(len(steps), most) + 1).astype(int)
    width = 2 if len(cuts) <= most // 2 + 1 else 1
    yield from map(Text, wrapped(printable(title), room))
    span = f"step {steps[0]}" + (f" to {steps[-1]}" if len(steps) > 1 else "")
    yield Text(f"{'rank':<{margin}}  {span}", "bold")
    for row, rank in enumerate(shown):
        line = Text(f"{rank:<{margin}}  ")
        for begin, end in pairwise(cuts):
            line.append_text(
                _cell(
                    int(scale.level[row, begin:end].max()),
                    width,
                    present=bool(present[row, begin:end].any()),
                    bad=bool(bad[row, begin:end].any()),
                    in_colour=in_colour,
                )
            )
        yield line
    meanings = _legend(scale, bad=bool(bad.any()), gaps=bool((~present).any()), in_colour=in_colour)
    line = Text()
    for meaning in meanings:
        if line and line.cell_len + meaning.cell_len > room:
            yield line
            line = Text()
        line.append_text(meaning).append("   ")
    yield line


def _cell(level: int, width: int, *, present: bool, bad: bool, in_colour: bool) -> Text:
    if not present:
        return Text(_GAP * width, "dim")
    if bad:
        return Text(_BAD * width, "bold white on red")
    if level == UNKNOWN:
        return Text(_UNKNOWN * width)
    if level == ZERO:
        return Text(_ZERO * width)
    shade = min(level, len(_SHADES)) - 1
    return Text("█" * width, _COLOURS[shade]) if in_colour else Text(_SHADES[shade] * width)


def _legend(scale: HeatmapScale, *, bad: bool, gaps: bool, in_colour: bool) -> Iterator[Text]:
    """Yield the meaning of each cell; those of zero and of all elements only if they occur."""
    number = _count_text if scale.is_count else number_text
    meanings = [(ZERO, "0")] if (scale.level == ZERO).any() else []
    meanings += [
        (level, number(low) if low == high else f"{number(low)} to {number(high)}")
        for level, low, high in scale.ranges
    ]
    meanings += [(ALL, "all elements")] if (scale.level == ALL).any() else []
    for level, words in meanings:
        cell = _cell(level, 1, present=True, bad=False, in_colour=in_colour)
        yield Text().append_text(cell).append(f" {words}")
    if bad:
        yield Text(f"{_BAD} NaN or Inf")
    if gaps:
        yield Text(f"{_GAP} no such tensor")


def _count_text(value: float) -> str:
    """Return a count with all digits."""
    return str(int(value))
