"""One statistic of tensors over steps: a row for each tensor, rank and step, and a line for each tensor."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from ingest.questions.choosing import (
    choice_text,
    marked,
    matching_tensors,
    statistic_for,
    statistics_for,
    unused_steps,
    whole_count,
)
from ingest.questions.plot import Figure, as_plain_text, is_logarithmic, new_figure, shortened_title
from ingest.questions.question import Part, Partial, Pattern, Question, Ranks, Shown, Statistic, Steps, Table
from ingest.reader.catalog import Catalog
from ingest.reader.choice import format_ranges
from ingest.reader.snapshot import Snapshot, ask_of_undamaged, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import FilterFields, with_pattern
from ingest.reader.text import counted, number_text, printable, shortened
from workers.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from rich.text import Text


#: Entries of each part of the legend; the picture grows with them.
MAX_ENTRIES = 64
#: Characters of a name in the legend.
_MAX_NAME = 60
_BAD_COLOR = "#c00000"
#: Ten colours that differ, and a dash for each ten lines.
_COLORS = tuple(f"C{number}" for number in range(10))
_DASHES: tuple[Any, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (6, 1, 1, 1, 1, 1)),
    (0, (1, 4)),
    (0, (8, 3)),
)
#: Points of a line that show the number of its rank; those of other ranks are at other steps.
_NUMBERED = 4
#: Decades that the height of a label covers in a wide range, as a share of the range.
_LABELS_IN_HEIGHT = 12
_POINTS = {"marker": ".", "markersize": 4}
#: Up to this many ranks of one tensor have a colour each; above, those that stand out, or a scale of colours.
_MAX_COLORED = len(_COLORS)
#: How far from the median of all ranks a value stands out, in robust standard deviations: of a thousand
#: steps and ranks of normally distributed values, none does.
_OUTLYING = 6.0
_MAD_TO_SIGMA = 1.4826
_ROUNDING = 1e-5
#: Colours of ranks that stand out, and of the others.
_OUTLYING_COLORS = ("#d1495b", "#1f77b4", "#2a9d3a", "#e07b00", "#8338ec", "#0096a8", "#8c564b", "#d6219c")
_OTHERS_COLOR = "#c4c4c4"
#: From the lowest rank to the highest, as in viridis: their lightness differs, too.
_SCALE_COLORS = ("#440154", "#31688e", "#35b779", "#e3c81a")


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One tensor of one rank over all steps of a plot."""

    rank: str
    name: str
    heights: npt.NDArray[np.float64]
    """(step,): the values; NaN for unknown."""
    present: npt.NDArray[np.bool_]
    """(step,): whether the rank has the tensor."""
    bad: npt.NDArray[np.bool_]

    def extreme(self, of: Callable[[npt.NDArray[np.float64]], np.float64]) -> float | None:
        """Return the least or greatest of the finite values; None if there is none."""
        known = self.heights[self.present & np.isfinite(self.heights)]
        return float(of(known)) if known.size else None


#: How a line is drawn, and its label in the legend; "" for none.
_Look: TypeAlias = tuple[str, dict[str, Any]]


def trend_figure(title: str, steps: Sequence[int], lines: Sequence[Line], statistic: str) -> Figure:
    """Draw a line for each tensor and rank, with gaps if it is absent, and red crosses for NaN and Inf.

    Colour and dash tell tensors apart, or ranks if there is a single tensor. If there are several of both,
    numbers on a line are its rank. Of many ranks of one tensor, those that stand out have colours of their
    own; if none does, a scale tells their colours.

    Raises:
        UsageError: matplotlib is not installed.
    """
    names, ranks = ([*dict.fromkeys(getattr(line, part) for line in lines)] for part in ("name", "rank"))
    is_many = len(names) == 1 and len(lines) == len(ranks) > _MAX_COLORED
    entries = len(names) if len(names) > 1 else 0 if is_many else len(ranks)
    figure = new_figure(12, max(5.0, 1.0 + 0.155 * min(entries, MAX_ENTRIES)))
    axes = figure.add_subplot()
    if lines:
        _set_scale(axes, lines)
        texts = dict(zip(names, shortened([*map(printable, names)], _MAX_NAME), strict=True))
        looks = (
            _of_many_ranks(axes, lines, texts[names[0]])
            if is_many
            else _of_few(lines, texts, ranks, len(steps))
        )
        handles = _draw(axes, steps, lines, looks)
        if handles:
            about = "numbers on a line: its rank" if len(ranks) > 1 else ""
            _add_legend(axes, handles, title=texts[names[0]] if len(names) == 1 else about)
        _mark_bad(axes, np.array(steps), lines)
    as_plain_text(axes.set_xlabel("step"))
    as_plain_text(axes.set_ylabel(statistic))
    axes.xaxis.get_major_locator().set_params(integer=True)
    as_plain_text(axes.set_title(shortened_title(title), fontsize=10, loc="left"))
    return figure


def _draw(axes: Any, steps: Sequence[int], lines: Sequence[Line], looks: Iterable[_Look]) -> dict[str, Any]:
    """Draw each line in its look; return what stands for each label in the legend."""
    handles: dict[str, Any] = {}
    for line, (label, look) in zip(lines, looks, strict=True):
        axes.plot(steps, np.where(line.present, line.heights, np.nan), **look)
        if label and label not in handles:
            plain = {name: value for name, value in look.items() if not name.startswith("marker")}
            (handles[label],) = axes.plot([], [], **plain)
    return handles


def _of_few(
    lines: Sequence[Line], texts: Mapping[str, str], ranks: Sequence[str], steps: int
) -> Iterator[_Look]:
    """Yield a look for each name, or for each rank of a single one; markers of ranks at different steps."""
    names, every = [*texts], max(steps // _NUMBERED, 1)
    numbered = {
        line for name in names for line in _standing_out([line for line in lines if line.name == name])
    }
    for line in lines:
        rank = ranks.index(line.rank)
        place = rank if len(names) == 1 else names.index(line.name)
        look = {
            "color": _COLORS[place % len(_COLORS)],
            "linestyle": _DASHES[place // len(_COLORS) % len(_DASHES)],
            "linewidth": 1,
            **_POINTS,
        }
        is_numbered = len(ranks) <= _MAX_COLORED or line in numbered
        if len(names) > 1 and len(ranks) > 1 and is_numbered and line.rank.isdigit():
            look |= {"marker": f"${line.rank}$", "markersize": 8, "markeredgewidth": 0.2}
            look["markevery"] = (rank % every, every)
        yield (f"rank {line.rank}" if len(names) == 1 else texts[line.name]), look


def _of_many_ranks(axes: Any, lines: Sequence[Line], name: str) -> Iterator[_Look]:
    """Yield a colour for each rank that stands out, and grey for the others; else those of a scale."""
    standing_out = _standing_out(lines)
    colors = dict(zip(standing_out, _OUTLYING_COLORS, strict=False))
    left = len(standing_out) - len(colors)
    others = f"the other {counted(len(lines) - len(colors), 'rank')}"
    others += f", {left} of which stand out, too" if left else ""
    scale = [] if colors else _add_scale(axes, lines, name)
    for place, line in enumerate(lines):
        look = {"color": _OTHERS_COLOR, "linewidth": 0.8, **_POINTS}
        if scale:
            yield "", look | {"color": scale[place]}
        elif line in colors:
            known = "" if np.isfinite(line.heights[line.present]).any() else ": no finite value"
            yield f"rank {line.rank}{known}", look | {"color": colors[line], "linewidth": 1.8, "zorder": 3}
        else:
            yield others, look


def _standing_out(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of one tensor that stand out: those with NaN or Inf, then those far from the median.

    Far is relative to the median absolute deviation of all lines in the same step. The first NaN or Inf and
    the farthest come first.
    """
    heights = np.array([np.where(line.present, line.heights, np.nan) for line in lines])
    heights[~np.isfinite(heights)] = np.nan
    heights[:, np.isnan(heights).all(axis=0)] = 0.0  # no line is far from others there
    median = np.nanmedian(heights, axis=0)
    distances = np.abs(heights - median)
    spread = np.nanmedian(distances, axis=0) * _MAD_TO_SIGMA
    # Where most ranks are equal, any that differs by more than rounding stands out.
    limit = np.maximum(_OUTLYING * spread, np.abs(median) * _ROUNDING)
    far = np.nan_to_num(distances)
    with np.errstate(divide="ignore", over="ignore"):
        scores = np.divide(far, limit, out=np.zeros_like(far), where=far > limit).max(axis=1)
    bad = np.array([line.bad & line.present for line in lines])
    first_bad = np.where(bad.any(axis=1), bad.argmax(axis=1), bad.shape[1])
    order = np.lexsort((-scores, first_bad))
    return [lines[place] for place in order if first_bad[place] < bad.shape[1] or scores[place] > 0]


def _add_scale(axes: Any, lines: Sequence[Line], name: str) -> list[Any]:
    from matplotlib.cm import ScalarMappable  # deferred: matplotlib is optional
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    ranks = [int(line.rank) if line.rank.isdigit() else place for place, line in enumerate(lines)]
    scale = ScalarMappable(
        Normalize(min(ranks), max(ranks)), LinearSegmentedColormap.from_list("ranks", _SCALE_COLORS)
    )
    bar = axes.figure.colorbar(scale, ax=axes, pad=0.02, aspect=40)
    bar.ax.yaxis.get_major_locator().set_params(integer=True)
    bar.ax.set_ylabel(f"{name}: rank", fontsize=8).set_parse_math(False)
    return list(scale.to_rgba(np.array(ranks)))


def _mark_bad(axes: Any, steps: npt.NDArray[np.int64], lines: Sequence[Line]) -> None:
    for line in lines:
        known = line.bad & line.present & np.isfinite(line.heights)
        axes.plot(steps[known], line.heights[known], "x", color=_BAD_COLOR)
    before: set[int] = set()
    for place, step in enumerate(steps.tolist()):
        ranks = {int(line.rank) for line in lines if line.bad[place] and line.present[place]}
        if ranks:
            axes.plot([step], [0.02], "x", color=_BAD_COLOR, transform=axes.get_xaxis_transform())
        if ranks and ranks != before:
            axes.annotate(
                f"NaN/Inf: rank {format_ranges(ranks)}",
                (step, 0.035),
                xycoords=axes.get_xaxis_transform(),
                rotation=90,
                fontsize=6,
                color=_BAD_COLOR,
                ha="center",
                va="bottom",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
            )
        before = ranks


def _add_legend(axes: Any, handles: dict[str, Any], *, title: str) -> None:
    labels = list(handles)[:MAX_ENTRIES]
    shown = [handles[label] for label in labels]
    if len(handles) > len(labels):
        labels[-1] += f"  (and {len(handles) - len(labels)} more)"
    legend = axes.legend(
        shown,
        labels,
        title=title or None,
        title_fontsize=7,
        fontsize=6,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        handlelength=4,
    )
    for text in (*legend.get_texts(), legend.get_title()):
        text.set_parse_math(False)  # what is between two `$` is not a formula


def _set_scale(axes: Any, lines: Sequence[Line]) -> None:
    values = np.concatenate([line.heights[line.present] for line in lines])
    known = np.abs(values[np.isfinite(values)])
    known = known[known > 0]
    if is_logarithmic(values):
        axes.set_yscale("log")
    elif is_logarithmic(known):
        # Linear between zero and the least magnitude; more than sixty decades could not be read.
        least = max(float(known.min()), float(known.max()) * 1e-60)
        least = 10.0 ** math.floor(math.log10(least))  # where a label is
        # High enough that it does not overlap with the label of zero.
        decades = math.log10(float(known.max()) / least)
        axes.set_yscale("symlog", linthresh=least, linscale=max(1.0, decades / _LABELS_IN_HEIGHT))
        if not (values < 0).any():
            # The lines are drawn later, so both limits are needed. The margin is matplotlib's, a twentieth.
            axes.set_ylim(-least / 2, min(float(known.max()) * 10 ** (decades / 20), sys.float_info.max))
    else:
        axes.yaxis.set_major_formatter("{x:.6g}")


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


def trend_of(snapshot: Snapshot, chosen: FilterFields, statistic: str) -> pd.DataFrame:
    """Return one statistic of some tensors of a snapshot; see `trend`."""
    import pandas as pd  # deferred: takes 0.4 s to import

    # Numbers of elements only tell roles apart; the answer leaves them out.
    others = ("count",) if chosen.get("role") else ()
    statistics = statistics_for(snapshot, chosen, (statistic, *others))
    columns = _trend_columns(statistics, chosen, statistic)
    order = np.lexsort((columns["step"], columns["rank"], columns["tensor"]))
    places = columns.pop("tensor")[order].astype(np.int64)
    distinct, code = np.unique(places, return_inverse=True)
    keys = [statistics.axis[place] for place in distinct.tolist()]
    frame = pd.DataFrame(
        {
            name: np.array([getattr(key, name) for key in keys], object)[code]
            for name in ("name", "net", "graph")
        }
        | {column: values[order] for column, values in columns.items()}
    )
    frame.attrs = {"statistic": statistic, "of": choice_text(chosen), **unused_steps(snapshot)}
    return frame


def _trend_columns(
    statistics: StepStatistics, chosen: FilterFields, statistic: str
) -> dict[str, npt.NDArray[Any]]:
    """Return one element for each value: the place of its tensor, rank, step, value and non-finite count."""
    parts: dict[str, list[npt.NDArray[Any]]] = defaultdict(list)
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
        return Table(
            {
                "rank": lambda line: line.rank,
                "name": lambda line: line.name,
                "first": lambda line: number_text(line.heights[line.present][0]),
                "last": lambda line: number_text(line.heights[line.present][-1]),
                "min": lambda line: number_text(line.extreme(np.min)),
                "max": lambda line: number_text(line.extreme(np.max)),
                f"step {first}" + (f" to {others[-1]}" if others else ""): _drawing,
            },
            self.lines,
            "line",
            right=("first", "last", "min", "max"),
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
