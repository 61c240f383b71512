"""The picture of a trend: which line has which colour, dash and marker, its legend, and its scale."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.plot import Figure, as_plain_text, is_logarithmic, new_figure, shortened_title
from ingest.reader.ranges import format_ranges
from ingest.reader.text import counted, printable, shortened

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
#: Up to this many ranks of one tensor have a colour each; above, a scale of colours.
_MAX_COLORED = len(_COLORS)
#: How far from the median of all ranks a value stands out, in robust standard deviations: of a thousand
#: steps and ranks of normally distributed values, none does.
_OUTLYING = 6.0
_MAD_TO_SIGMA = 1.4826
_ROUNDING = 1e-5
#: Colours of ranks that stand out from grey lines; labels beside the axes are this far apart.
_OUTLYING_COLORS = ("#d1495b", "#1f77b4", "#2a9d3a", "#e07b00", "#8338ec", "#0096a8", "#8c564b", "#d6219c")
_LABEL_PITCH, _HIGHEST_LABEL = 0.045, 0.86
_OTHERS_COLOR = "#c4c4c4"
#: From the lowest rank to the highest, as in viridis: their lightness differs, too.
_SCALE_COLORS = ("#440154", "#31688e", "#35b779", "#e3c81a")


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One tensor of one rank over all steps of a plot."""

    label: str
    """The rank, two spaces, and the name."""
    heights: npt.NDArray[np.float64]
    """(step,): the values; NaN for unknown."""
    present: npt.NDArray[np.bool_]
    """(step,): whether the rank has the tensor."""
    bad: npt.NDArray[np.bool_]
    """(step,): whether elements are NaN or infinite."""

    @property
    def rank(self) -> str:
        """The rank, as text."""
        return self.label.partition("  ")[0]

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.label.partition("  ")[2]

    def extreme(self, of: Callable[[npt.NDArray[np.float64]], np.float64]) -> float | None:
        """Return the least or greatest of the finite values; None if there is none."""
        known = self.heights[self.present & np.isfinite(self.heights)]
        return float(of(known)) if known.size else None


def height_of(lines: Sequence[Line]) -> float:
    """Return the height in inches at which the legend of these lines fits beside them."""
    entries = len({line.name for line in lines})
    ranks = len({line.rank for line in lines})
    if entries == 1:
        entries = ranks if ranks <= _MAX_COLORED else 0
    return max(5.0, 1.0 + 0.155 * min(entries, MAX_ENTRIES))


def draw_lines(axes: Any, steps: npt.NDArray[np.int64], lines: Sequence[Line]) -> None:
    """Draw the lines, a legend outside of the axes, and the ranks that hold NaN or Inf in each step.

    Colour and dash tell tensors apart, or ranks if there is a single tensor. If there are several of both,
    numbers on a line are its rank. Many ranks of one tensor have a scale of colours in the place of a legend,
    and those that stand out have their labels.
    """
    names = list(dict.fromkeys(line.name for line in lines))
    ranks = list(dict.fromkeys(line.rank for line in lines))
    _set_scale(axes, lines)
    if len(names) == 1 and len(lines) == len(ranks) > _MAX_COLORED:
        _draw_many_ranks(axes, steps, lines, shortened([printable(names[0])], _MAX_NAME)[0])
    else:
        _draw_few(axes, steps, lines, names, ranks)
    for line in lines:
        _cross_out(axes, steps, line)
    _name_bad_ranks(axes, steps, lines)


def _draw_few(
    axes: Any, steps: npt.NDArray[np.int64], lines: Sequence[Line], names: list[str], ranks: list[str]
) -> None:
    """Draw lines that colours and dashes tell apart, and their legend."""
    by_rank, is_both = len(names) == 1, len(names) > 1 and len(ranks) > 1
    texts = dict(zip(names, shortened(list(map(printable, names)), _MAX_NAME), strict=True))
    handles: dict[str, Any] = {}
    numbered = _numbered(lines, names) if is_both and len(ranks) > _MAX_COLORED else set(lines)
    for line in lines:
        place = ranks.index(line.rank)
        look = _look(place if by_rank else names.index(line.name))
        markers = _rank_markers(line.rank, place, len(steps)) if is_both and line in numbered else _POINTS
        axes.plot(steps, np.where(line.present, line.heights, np.nan), **look, **markers)
        label = f"rank {line.rank}" if by_rank else texts[line.name]
        if label not in handles:
            (handles[label],) = axes.plot([], [], **look)
    which = "its rank, if it stands out" if len(numbered) < len(lines) else "its rank"
    numbers = f"numbers on a line: {which}" if is_both else ""
    _add_legend(axes, handles, title=texts[names[0]] if by_rank and names else numbers)


def _numbered(lines: Sequence[Line], names: Sequence[str]) -> set[Line]:
    """Return the lines that stand out from others of the same tensor."""
    numbered: set[Line] = set()
    for name in names:
        ranks = [line for line in lines if line.name == name]
        numbered |= {ranks[place] for place in outlying(ranks)}
    return numbered


def outlying(lines: Sequence[Line]) -> list[int]:
    """Return the places of the lines that stand out: those with NaN or Inf, then those far from the median.

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
    return [place for place in order.tolist() if first_bad[place] < bad.shape[1] or scores[place] > 0]


def _draw_many_ranks(axes: Any, steps: npt.NDArray[np.int64], lines: Sequence[Line], name: str) -> None:
    """Draw ranks in colours of a scale; if some stand out, those in colours with labels, others grey."""
    all_outlying = outlying(lines)
    colors = dict(zip(all_outlying, _OUTLYING_COLORS, strict=False))
    others = [_OTHERS_COLOR] * len(lines) if colors else _add_scale(axes, lines, name)
    for place, line in enumerate(lines):
        chosen = {"color": colors.get(place), "linewidth": 1.8, "zorder": 3} if place in colors else {}
        look = {"color": others[place], "linewidth": 0.8, **chosen}
        axes.plot(steps, np.where(line.present, line.heights, np.nan), **look, **_POINTS)
    if colors:
        left = len(all_outlying) - len(colors)
        also = f", {left} of which stand out, too" if left else ""
        (other,) = axes.plot([], [], color=_OTHERS_COLOR, linewidth=0.8)
        label = f"the other {counted(len(lines) - len(colors), 'rank')}{also}"
        _add_legend(axes, {label: other}, title=name)
        _label_ends(axes, steps, [(lines[place], color) for place, color in colors.items()])


def _add_scale(axes: Any, lines: Sequence[Line], name: str) -> list[Any]:
    """Add a bar of colours beside the axes, and return the colour of each line by the number of its rank."""
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


def _label_ends(axes: Any, steps: npt.NDArray[np.int64], chosen: Sequence[tuple[Line, str]]) -> None:
    """Write the rank of each line beside the axes, with a thin line to its last value; none overlap."""
    axes.get_ylim()  # scales the axes to the lines
    ends = []
    for line, color in chosen:
        known = np.flatnonzero(line.present & np.isfinite(line.heights))
        point = (steps[known[-1]], line.heights[known[-1]]) if known.size else None
        height = _axes_height(axes, point) if point else 0.0
        ends.append((height, line.rank, color, point))
    ends.sort(key=lambda end: end[:2])
    lowest = -_LABEL_PITCH
    tops = [_HIGHEST_LABEL - _LABEL_PITCH * (len(ends) - 1 - place) for place in range(len(ends))]
    for (height, rank, color, point), top in zip(ends, tops, strict=True):
        lowest = min(max(height, lowest + _LABEL_PITCH), top)
        arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(
            f"rank {rank}" if point else f"rank {rank}: no finite value",
            point or (1.0, lowest),
            xycoords="data" if point else "axes fraction",
            xytext=(1.03, lowest),
            textcoords="axes fraction",
            fontsize=8,
            color=color,
            va="center",
            annotation_clip=False,
            arrowprops=arrow if point else None,
        )


def _axes_height(axes: Any, point: tuple[Any, Any]) -> float:
    """Return the height of a point as a share of the height of the axes."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform(point))[1])


def _look(place: int) -> dict[str, Any]:
    """Return colour and dash of a tensor, or of a rank."""
    return {
        "color": _COLORS[place % len(_COLORS)],
        "linestyle": _DASHES[place // len(_COLORS) % len(_DASHES)],
        "linewidth": 1,
    }


def _rank_markers(rank: str, place: int, steps: int) -> dict[str, Any]:
    """Return markers that show the number of a rank, at other steps than those of its neighbours."""
    every = max(steps // _NUMBERED, 1)
    return {
        "marker": f"${rank}$" if rank.isdigit() else ".",
        "markersize": 8,
        "markeredgewidth": 0.2,
        "markevery": (place % every, every),
    }


def _cross_out(axes: Any, steps: npt.NDArray[np.int64], line: Line) -> None:
    known = line.bad & line.present & np.isfinite(line.heights)
    axes.plot(steps[known], line.heights[known], "x", color=_BAD_COLOR)


def _name_bad_ranks(axes: Any, steps: npt.NDArray[np.int64], lines: Sequence[Line]) -> None:
    """Draw a cross near the axis for each step with NaN or Inf, and write the ranks where they change."""
    before: set[int] = set()
    for place, step in enumerate(steps.tolist()):
        ranks = {
            int(line.rank)
            for line in lines
            if line.bad[place] and line.present[place] and line.rank.lstrip("-").isdigit()
        }
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
    """Choose a logarithmic scale for a wide range, also with zero and negative values, and plain numbers."""
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
        height = max(1.0, decades / _LABELS_IN_HEIGHT)
        axes.set_yscale("symlog", linthresh=least, linscale=height)
        if not (values < 0).any():
            # The lines are drawn later, so both limits are needed. The margin is matplotlib's, a twentieth.
            top = min(float(known.max()) * 10 ** (decades / 20), sys.float_info.max)
            axes.set_ylim(-least / 2, top)
    else:
        axes.yaxis.set_major_formatter("{x:.6g}")


def trend_figure(title: str, steps: Sequence[int], lines: Sequence[Line], statistic: str) -> Figure:
    """Draw a line for each tensor and rank, with gaps if it is absent, and red crosses for NaN and Inf.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure = new_figure(12, height_of(lines))
    axes = figure.add_subplot()
    if lines:
        draw_lines(axes, np.array(steps), lines)
    as_plain_text(axes.set_xlabel("step"))
    as_plain_text(axes.set_ylabel(statistic))
    axes.xaxis.get_major_locator().set_params(integer=True)
    as_plain_text(axes.set_title(shortened_title(title), fontsize=10, loc="left"))
    return figure
