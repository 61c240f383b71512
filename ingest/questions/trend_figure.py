"""The picture of a trend: which line has which colour, dash and marker, its legend, and its scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.heatmap_scale import is_logarithmic
from ingest.reader.ranges import format_ranges
from ingest.reader.text import printable, shortened

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


def height_of(lines: Sequence[Line]) -> float:
    """Return the height in inches at which the legend of these lines fits beside them."""
    entries = len({line.name for line in lines})
    entries = len({line.rank for line in lines}) if entries == 1 else entries
    return max(5.0, 1.0 + 0.155 * min(entries, MAX_ENTRIES))


def draw_lines(axes: Any, steps: npt.NDArray[np.int64], lines: Sequence[Line]) -> None:
    """Draw the lines, a legend outside of the axes, and the ranks that hold NaN or Inf in each step.

    Colour and dash tell tensors apart, or ranks if there is a single tensor. If there are several of both,
    numbers on a line are its rank.
    """
    names = list(dict.fromkeys(line.name for line in lines))
    ranks = list(dict.fromkeys(line.rank for line in lines))
    by_rank, is_both = len(names) == 1, len(names) > 1 and len(ranks) > 1
    texts = dict(zip(names, shortened(list(map(printable, names)), _MAX_NAME), strict=True))
    handles: dict[str, Any] = {}
    for line in lines:
        place = ranks.index(line.rank)
        look = _look(place if by_rank else names.index(line.name))
        markers = _rank_markers(line.rank, place, len(steps)) if is_both else _POINTS
        axes.plot(steps, np.where(line.present, line.heights, np.nan), **look, **markers)
        label = f"rank {line.rank}" if by_rank else texts[line.name]
        if label not in handles:
            (handles[label],) = axes.plot([], [], **look)
        _cross_out(axes, steps, line)
    _add_legend(axes, handles, title=texts[names[0]] if by_rank and names else "", has_numbers=is_both)
    _name_bad_ranks(axes, steps, lines)
    _set_scale(axes, lines)


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


def _add_legend(axes: Any, handles: dict[str, Any], *, title: str, has_numbers: bool) -> None:
    labels = list(handles)[:MAX_ENTRIES]
    shown = [handles[label] for label in labels]
    if len(handles) > len(labels):
        labels[-1] += f"  (and {len(handles) - len(labels)} more)"
    heading = title or ("numbers on a line: its rank" if has_numbers else None)
    legend = axes.legend(
        shown,
        labels,
        title=heading,
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
        height = max(1.0, math.log10(float(known.max()) / least) / _LABELS_IN_HEIGHT)
        axes.set_yscale("symlog", linthresh=least, linscale=height)
        if not (values < 0).any():
            axes.set_ylim(bottom=-least / 2)
    else:
        axes.yaxis.set_major_formatter("{x:.6g}")
