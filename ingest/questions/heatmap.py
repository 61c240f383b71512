"""One statistic of all tensors that match, over ranks and steps: as a field, on a terminal, and as a picture.

A heatmap tells its values apart: zero, levels of what is above zero, and counts of all elements. Counts have
a logarithmic scale: a step with 2000 NaN and one with 20000 must both differ from one with none, and also
from one in which every element is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import numpy as np
import numpy.typing as npt
from rich.text import Text

from ingest.questions.choosing import (
    ALL_TENSORS,
    choice_text,
    marked,
    matching_tensors,
    statistic_for,
    statistics_for,
    unused_steps,
    whole_count,
)
from ingest.questions.matrix import matrix, parse_cells, rank_values_answer
from ingest.questions.plot import Figure, as_plain_text, is_logarithmic, new_figure, shortened_title
from ingest.questions.question import (
    Drawing,
    Mode,
    Option,
    Part,
    Partial,
    Pattern,
    Question,
    Ranks,
    Shown,
    Statistic,
    Steps,
    Table,
)
from ingest.reader.catalog import Catalog
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.tensor_filter import FilterFields, with_pattern
from ingest.reader.text import number_text
from workers.arrays.statistics import ABOUT_NON_FINITE, AGGREGATES, COUNTS, aggregated, default_aggregate
from workers.errors import UsageError

if TYPE_CHECKING:
    import xarray as xr

_MAX_TICKS = 32
#: How far below the axes the legend of a heatmap is: below the numbers and the name of the axis.
_BELOW_INCHES = 0.6
_BAD_COLOR = "#c00000"
#: Cells of a heatmap that are not on its scale.
_GAP_COLOR, _ZERO_COLOR, _WHOLE_COLOR = "#d0d0d0", "#ffffff", "#ff8c00"
_MAX_CELLS = 60
_SHADES = "░▒▓█"
#: From low to high, as in viridis: their lightness differs, too.
_COLOURS = ("#440154", "#31688e", "#35b779", "#fde725")
_GAP, _ZERO, _BAD, _UNKNOWN = "-", "·", "!", "?"
#: How many levels there are between zero and all, or without these.
_LEVELS, _LEVELS_OF_COUNTS = 4, 3
#: In place of a level: the value is unknown; it is zero; it is the number of all elements.
UNKNOWN, ZERO, ALL = -1, 0, 5


def heatmap(
    store: Catalog,
    pattern: Pattern = None,
    stat: Statistic = None,
    *,
    aggregate: Annotated[
        str | None,
        Option(
            "How to combine several tensors: max, min, sum or mean. "
            "Default: sum for counts, min for min, max for the rest.",
            "HOW",
        ),
    ] = None,
    rank: Ranks = None,
    step: Steps = None,
    include_partial: Partial = False,
    **conditions: Unpack[FilterFields],
) -> xr.DataArray:
    """Show a statistic of one tensor, or of several together, over ranks and steps.

    `··` is zero, `!!` marks NaN or Inf, `--` a step without such a tensor. Counts have a logarithmic scale;
    `██` counts all elements.

    Returns:
        float64 (rank, step), with the name of the statistic; NaN if a rank does not have such a tensor in
        that step, or its value is unknown. The coordinates `tensors`, `elements` and `non_finite`,
        (rank, step), are the number of tensors, of their elements, and of those of the elements that are
        NaN or infinite; NaN if they are unknown. `attrs` has `pattern`, `statistic`, `aggregate`, `tensors`
        (the number of tensors that match), `of` (what was asked for, in words), `left_out`, `damaged`.

    Raises:
        UsageError: no tensor matches, or the statistic or the aggregate is unknown.
        DamagedStore: no step can be read.
    """
    snapshot = take_snapshot(store, rank, step, include_partial=include_partial)
    chosen = with_pattern(pattern, conditions)
    statistic = statistic_for(stat, chosen)
    return ask_of_undamaged(snapshot, lambda readable: _heatmap_of(readable, chosen, statistic, aggregate))


def _heatmap_of(
    snapshot: Snapshot, chosen: FilterFields, statistic: str, aggregate: str | None
) -> xr.DataArray:
    import xarray as xr  # deferred: takes 0.7 s to import

    how = (aggregate or default_aggregate(statistic)).lower()
    if how not in AGGREGATES:
        raise UsageError(f"{aggregate!r} is not an aggregate", hint=f"Aggregates: {', '.join(AGGREGATES)}.")
    ranks, steps = snapshot.ranks, snapshot.steps
    values = np.full((len(ranks), len(steps)), np.nan)
    non_finite, elements = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    tensors = np.zeros(values.shape, np.int64)
    distinct: set[int] = set()
    statistics = statistics_for(snapshot, chosen, (statistic, "count"))
    for number, matches in enumerate(matching_tensors(statistics, chosen)):
        rows = np.searchsorted(ranks, matches.block.ranks)
        distinct |= set(matches.places.tolist())
        tensors[rows, number] = matches.present.sum(axis=1)
        values[rows, number] = aggregated(matches.statistic(statistic), how)
        elements[rows, number] = aggregated(matches.statistic("count"), "sum")
        non_finite[rows, number] = aggregated(matches.statistic("non_finite_count"), "sum")
    field = ("rank", "step")
    return xr.DataArray(
        values,
        dims=field,
        coords={
            "rank": np.array(ranks, np.int64),
            "step": np.array(steps, np.int64),
            "tensors": (field, tensors),
            "elements": (field, elements),
            "non_finite": (field, non_finite),
        },
        name=statistic,
        attrs={
            "pattern": str(chosen.get("name") or "*"),
            "statistic": statistic,
            "aggregate": how,
            "tensors": len(distinct),
            "of": choice_text(chosen),
            **unused_steps(snapshot),
        },
    )


@dataclass(frozen=True)
class HeatmapAnswer(Shown):
    """A heatmap as people see it."""

    field: xr.DataArray

    @property
    def title(self) -> str:
        """What it is about."""
        about = self.field.attrs
        if about["tensors"] <= 1:
            return f"{about['statistic']} of {about['of']}"
        like = "" if about["of"] == ALL_TENSORS else f" like {about['of']}"
        return f"{about['aggregate']} of {about['statistic']} of {about['tensors']} tensors{like}"

    @property
    def left_out(self) -> Sequence[object]:
        """Steps that it is not about, and why."""
        return self.field.attrs["left_out"]  # type: ignore[no-any-return]  # xarray lets it hold anything

    @property
    def damaged(self) -> Sequence[object]:
        """Those of them that are damaged."""
        return self.field.attrs["damaged"]  # type: ignore[no-any-return]

    @property
    def remarks(self) -> Sequence[str]:
        """What the marks of the picture and the table mean."""
        marks = "A red cross or ! marks NaN or Inf; grey or empty: the rank has no such tensor in that step."
        is_whole = wholes(self.field).any()
        return (marks, *(["Orange or (all): all elements of the tensors are counted."] if is_whole else []))

    def table(self) -> Table[tuple[str, ...]]:
        """Return a row for each rank, with a column for each step."""
        field, scale = self.field, HeatmapScale.of(self.field)
        texts = np.vectorize(scale.number, [object])(field.values)
        bad = marked(field.attrs["statistic"], field["non_finite"].values)
        for marks, mark in ((bad, "!"), (wholes(field), " (all)")):
            texts[marks] += mark
        texts[field["tensors"].values == 0] = ""
        rows = [(str(rank), *cells) for rank, cells in zip(field["rank"].values, texts.tolist(), strict=True)]
        steps = [str(step) for step in field["step"].values.tolist()]
        columns = {name: itemgetter(place) for place, name in enumerate(("rank", *steps))}
        return Table(columns, rows, "rank", right=steps)

    def report(self) -> Iterable[Part]:
        """Return what people read: a line of blocks for each rank, and a legend."""
        yield self.title
        yield Drawing(partial(_lines, self.field), len(self.field["rank"]), "rank")

    def to_json(self) -> list[dict[str, Any]]:
        """Return a row for each rank and step."""
        return heatmap_rows(self.field)

    def csv(self) -> str:
        """Return all values."""
        return self.field.to_dataframe(name="value").reset_index().to_csv(index=False)

    def figure(self, limit: int) -> Figure:  # noqa: ARG002  (it shows all ranks)
        """Draw ranks over steps."""
        return heatmap_figure(self.title, self.field)


def heatmap_rows(field: xr.DataArray) -> list[dict[str, Any]]:
    """Return a heatmap as JSON has it: a row for each rank and step."""
    ranks, steps = field["rank"].values.tolist(), field["step"].values.tolist()
    columns = {name: field[name].values.tolist() for name in ("tensors", "elements", "non_finite")}
    values = field.values.tolist()
    return [
        {
            "rank": rank,
            "step": step,
            "value": values[row][column],
            "tensors": columns["tensors"][row][column],
            "elements": whole_count(columns["elements"][row][column]),
            "non_finite": whole_count(columns["non_finite"][row][column]),
            "statistic": field.attrs["statistic"],
            "aggregate": field.attrs["aggregate"],
        }
        for row, rank in enumerate(ranks)
        for column, step in enumerate(steps)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class HeatmapScale:
    """The level of each value, and the range of values of each level."""

    level: npt.NDArray[np.int64]
    """(rank, step): `UNKNOWN`, `ZERO`, 1 to 4, or `ALL`."""
    ranges: tuple[tuple[int, float, float], ...]
    """Each level from 1, with the least and the greatest value that it may hold."""
    is_count: bool

    @classmethod
    def of(cls, field: xr.DataArray) -> HeatmapScale:
        """Return the scale of a heatmap, (rank, step)."""
        values, statistic = field.values, field.attrs["statistic"]
        is_count = statistic in COUNTS and field.attrs["aggregate"] != "mean"
        is_zero, is_whole = zeros(field), wholes(field)
        is_between = np.isfinite(values) & ~is_zero & ~is_whole
        # What counts elements leaves the highest level to counts of all elements.
        levels = _LEVELS_OF_COUNTS if _counts_some(statistic) else _LEVELS
        level = np.full(values.shape, UNKNOWN)
        lows, high = _levels(values[is_between], levels, is_count=is_count)
        # The only level is the highest.
        first = 1 if len(lows) > 1 else levels
        level[is_between] = np.searchsorted(lows, values[is_between], side="right") - 1 + first
        level[is_zero], level[is_whole] = ZERO, ALL
        highs = [*(low - is_count for low in lows[1:]), high]
        ranges = [(first + place, *ends) for place, ends in enumerate(zip(lows, highs, strict=False))]
        return cls(level, tuple(ranges), is_count)

    def number(self, value: float) -> str:
        """Return how a value is written: counts with all digits."""
        return str(int(value)) if self.is_count and not math.isnan(value) else number_text(value)


def zeros(field: xr.DataArray) -> npt.NDArray[np.bool_]:
    """Return where a heatmap is zero; nowhere if values are negative, because then zero is not the least."""
    values = field.values
    return np.asarray((values == 0) & ~(values < 0).any())


def wholes(field: xr.DataArray) -> npt.NDArray[np.bool_]:
    """Return where a heatmap counts all elements that there are."""
    attrs = field.attrs
    is_total = attrs["aggregate"] == "sum" or attrs["tensors"] == 1
    if not (_counts_some(attrs["statistic"]) and is_total):
        return np.zeros(field.shape, bool)
    elements = field["elements"].values
    return np.asarray((field.values == elements) & (elements > 0))


def _counts_some(statistic: str) -> bool:
    """Return whether a statistic counts those elements of a tensor that are so, and not all of them."""
    return statistic in COUNTS and statistic != "count"


def _levels(values: npt.NDArray[np.float64], levels: int, *, is_count: bool) -> tuple[list[float], float]:
    """Return the least value of each level, and the greatest value of all."""
    if not values.size:
        return [], math.nan
    low, high = float(values.min()), float(values.max())
    shares = [part / levels for part in range(1, levels)] if low < high else []
    if (is_count and low > 0) or is_logarithmic(values):
        begin, span = math.log(low), math.log(high) - math.log(low)
        # A share that is a whole number but for rounding must not be taken for more.
        lows = [low, *(math.exp(begin + span * share) * (1 - 1e-12) for share in shares)]
    else:
        # Halved first: the difference of two large numbers is infinite.
        lows = [low, *(2 * (low / 2 + (high / 2 - low / 2) * share) for share in shares)]
    return list(dict.fromkeys(map(math.ceil, lows))) if is_count else lows, high


def _lines(field: xr.DataArray, room: int, limit: int, in_colour: bool) -> Iterator[Text]:  # noqa: FBT001
    shown = field["rank"].values.tolist()[: limit or None]
    scale = HeatmapScale.of(field)
    present = field["tensors"].values > 0
    bad = marked(field.attrs["statistic"], field["non_finite"].values)
    steps = field["step"].values
    margin = max(len("rank"), *(len(str(rank)) for rank in shown))
    most = max(min(_MAX_CELLS, room - margin - 2), 1)
    cuts = np.linspace(0, len(steps), min(len(steps), most) + 1).astype(int)
    width = 2 if len(cuts) <= most // 2 + 1 else 1
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
    line = Text()
    for meaning in _legend(scale, bad=bool(bad.any()), gaps=bool((~present).any()), in_colour=in_colour):
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
    if level in (UNKNOWN, ZERO):
        return Text((_ZERO if level == ZERO else _UNKNOWN) * width)
    shade = min(level, len(_SHADES)) - 1
    return Text("█" * width, _COLOURS[shade]) if in_colour else Text(_SHADES[shade] * width)


def _legend(scale: HeatmapScale, *, bad: bool, gaps: bool, in_colour: bool) -> Iterator[Text]:
    number = scale.number
    ranges = (
        (level, number(low) if low == high else f"{number(low)} to {number(high)}")
        for level, low, high in scale.ranges
    )
    for level, words in ((ZERO, "0"), *ranges, (ALL, "all elements")):
        if level in (ZERO, ALL) and not (scale.level == level).any():
            continue
        cell = _cell(level, 1, present=True, bad=False, in_colour=in_colour)
        yield Text().append_text(cell).append(f" {words}")
    if bad:
        yield Text(f"{_BAD} NaN or Inf")
    if gaps:
        yield Text(f"{_GAP} no such tensor")


def heatmap_figure(title: str, field: xr.DataArray) -> Figure:
    """Draw ranks over steps: grey if absent, white for zero, orange for all, red crosses for NaN and Inf.

    Raises:
        UsageError: matplotlib is not installed.
    """
    ranks, steps = field["rank"].values, field["step"].values
    figure = new_figure(min(4 + 0.3 * len(steps), 14), min(2 + 0.25 * len(ranks), 12))
    axes = figure.add_subplot()
    axes.set_facecolor(_GAP_COLOR)
    image = _draw_field(axes, field)
    rows, columns = np.nonzero((field["non_finite"].values > 0) & (field.name not in ABOUT_NON_FINITE))
    axes.plot(columns, rows, "x", color=_BAD_COLOR, linestyle="none")
    for axis, numbers, set_labels in (
        (axes.yaxis, ranks, axes.set_yticklabels),
        (axes.xaxis, steps, axes.set_xticklabels),
    ):
        # The least of 1, 2, 5, 10, 20 ... with which there are few enough ticks.
        strides = (factor * 10**power for power in range(len(str(len(numbers))) + 1) for factor in (1, 2, 5))
        stride = next(stride for stride in strides if stride * _MAX_TICKS >= len(numbers))
        places = np.arange(0, len(numbers), stride)
        axis.set_ticks(places)
        set_labels([str(numbers[place]) for place in places], fontsize=7)
    as_plain_text(axes.set_xlabel("step"))
    as_plain_text(axes.set_ylabel("rank"))
    as_plain_text(axes.set_title(shortened_title(title), fontsize=10, loc="left"))
    if image is not None:
        figure.colorbar(image, ax=axes, label=str(field.name))
    return figure


def _draw_field(axes: Any, field: xr.DataArray) -> Any | None:
    """Draw the cells; return the image that has a scale, or None if all cells are zero, whole or absent.

    Zero has a colour of its own, and so has a count of all elements: on a scale, few and none look alike.
    """
    from matplotlib.colors import ListedColormap, LogNorm  # deferred: matplotlib is optional
    from matplotlib.patches import Patch

    is_zero, is_whole = zeros(field), wholes(field)
    between = np.where(is_zero | is_whole, np.nan, field.values)
    scale = HeatmapScale.of(field)
    is_log = is_logarithmic(between) or (scale.is_count and bool(scale.ranges))
    how = {"aspect": "auto", "interpolation": "nearest"}
    image = axes.imshow(np.ma.masked_invalid(between), norm=LogNorm() if is_log else None, **how)
    patches = []
    for cells, color, label in ((is_zero, _ZERO_COLOR, "0"), (is_whole, _WHOLE_COLOR, "all elements")):
        if cells.any():
            axes.imshow(np.ma.masked_where(~cells, cells), cmap=ListedColormap([color]), **how)
            patches.append(Patch(facecolor=color, edgecolor="#888888", label=label))
    if (field["tensors"].values == 0).any():
        patches.append(Patch(facecolor=_GAP_COLOR, edgecolor="#888888", label="no such tensor"))
    if patches:
        axes.legend(
            handles=patches,
            fontsize=7,
            loc="upper left",
            bbox_to_anchor=(0, -_BELOW_INCHES / axes.figure.get_figheight()),
            ncols=len(patches),
        )
    return image if np.isfinite(between).any() else None


QUESTION = Question(
    heatmap,
    (
        "heatmap run.zarr --stat nan_count",
        "heatmap run.zarr 'AllReduce.*' --stat norm --aggregate mean --png norms.png",
    ),
    limit=128,
    noun="rank",
    shown=HeatmapAnswer,
    modes=(
        Mode(
            "values_only",
            Option("Print a line with rank, step and value for each, and count nothing: less is read."),
            default=False,
            ask=lambda store, _, **asked: rank_values_answer(store, **asked),
            takes=frozenset({"pattern", "stat", "rank", "step", "include_partial"}),
        ),
        Mode(
            "cells",
            Option(
                "Merge ranks and steps into at most this many cells, each with its worst value, as the page "
                "does, with partial steps; --stat is then non_finite, findings, overflows, ... or any other.",
                "ROWSxCOLUMNS",
            ),
            default=None,
            ask=lambda store, cells, **asked: matrix(store, cells=parse_cells(cells), **asked),
            takes=frozenset({"pattern", "stat", "rank", "step"}),
        ),
    ),
    check=lambda given: statistic_for(given.get("stat"), given),
)
