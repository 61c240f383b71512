"""Plots of trends and fields of ranks and steps, as PNG, SVG and a page of HTML that needs nothing else.

matplotlib is an optional dependency, and `pyplot`, which keeps figures for ever, is not used.
"""

from __future__ import annotations

import base64
import html
import io
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.questions.trend import ABOUT_NON_FINITE
from workers.errors import UsageError

if TYPE_CHECKING:
    import xarray as xr

Figure = Any
"""A figure of matplotlib, which has no part in checking types."""

#: Lines that the legend names; more would cover the plot.
_MAX_LEGEND = 16
_MAX_LABEL = 90
#: Ratio of the greatest to the least from which on a logarithmic scale shows more.
_LOGARITHMIC = 1000
_MAX_TICKS = 24
_BAD = "#c00000"


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One tensor of one rank over all steps of a plot."""

    label: str
    heights: npt.NDArray[np.float64]
    """(step,): the values; NaN for a gap."""
    present: npt.NDArray[np.bool_]
    bad: npt.NDArray[np.bool_]
    """Where elements are NaN or infinite."""


def trend_figure(title: str, steps: Sequence[int], lines: Sequence[Line], statistic: str) -> Figure:
    """Draw a line for each tensor and rank: gaps where there is nothing, red crosses where NaN or Inf is.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure = _new_figure(10, 5)
    axes = figure.add_subplot()
    handles = []
    for line in lines:
        (handle,) = axes.plot(steps, np.where(line.present, line.heights, np.nan), marker=".", linewidth=1)
        handles.append(handle)
        known = line.bad & line.present & np.isfinite(line.heights)
        unknown = line.bad & line.present & ~known
        at = np.array(steps)
        axes.plot(at[known], line.heights[known], "x", color=_BAD)
        # Where no value is known, there is no height to put it at.
        axes.plot(
            at[unknown], np.full(unknown.sum(), 0.02), "x", color=_BAD, transform=axes.get_xaxis_transform()
        )
    values = np.concatenate([line.heights[line.present] for line in lines]) if lines else np.zeros(0)
    if _is_logarithmic(values):
        axes.set_yscale("log")
    _text(axes.set_xlabel("step"))
    _text(axes.set_ylabel(statistic))
    axes.xaxis.get_major_locator().set_params(integer=True)
    _text(axes.set_title(_shortened(title), fontsize=10, loc="left"))
    shown = lines[:_MAX_LEGEND]
    if shown:
        labels = [_shortened(f"rank {line.label}") for line in shown]
        if len(shown) < len(lines):
            labels[-1] += f"  (and {len(lines) - len(shown)} more)"
        legend = axes.legend(
            handles[: len(shown)], labels, fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.12)
        )
        for text in legend.get_texts():
            _text(text)
    return figure


def heatmap_figure(title: str, field: xr.DataArray) -> Figure:
    """Draw ranks over steps: grey where there is nothing, red crosses where NaN or Inf is.

    Raises:
        UsageError: matplotlib is not installed.
    """
    values = field.values
    ranks, steps = field["rank"].values, field["step"].values
    figure = _new_figure(min(4 + 0.3 * len(steps), 14), min(2 + 0.25 * len(ranks), 12))
    from matplotlib.colors import LogNorm

    axes = figure.add_subplot()
    axes.set_facecolor("#d0d0d0")
    image = axes.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        interpolation="nearest",
        norm=LogNorm() if _is_logarithmic(values) else None,
    )
    counted = field.name in ABOUT_NON_FINITE
    rows, columns = np.nonzero((field["non_finite"].values > 0) & (not counted))
    axes.plot(columns, rows, "x", color=_BAD, linestyle="none")
    for axis, numbers, set_labels in (
        (axes.yaxis, ranks, axes.set_yticklabels),
        (axes.xaxis, steps, axes.set_xticklabels),
    ):
        places = np.unique(np.linspace(0, len(numbers) - 1, min(len(numbers), _MAX_TICKS)).astype(int))
        axis.set_ticks(places)
        set_labels([str(numbers[place]) for place in places], fontsize=7)
    _text(axes.set_xlabel("step"))
    _text(axes.set_ylabel("rank"))
    _text(axes.set_title(_shortened(title), fontsize=10, loc="left"))
    figure.colorbar(image, ax=axes, label=str(field.name))
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    return _saved(figure, "png", dpi=120)


def page(
    title: str, figure: Figure, columns: Sequence[str], rows: Iterable[Sequence[str]], remarks: Sequence[str]
) -> str:
    """Return a page of HTML with a figure and a table; it refers to nothing, and runs nothing."""
    # As an image: what stands in an SVG cannot run there.
    image = base64.b64encode(_saved(figure, "svg", metadata={"Date": None})).decode()
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    said = "\n".join(f"<p>{html.escape(remark)}</p>" for remark in remarks)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{html.escape(title)}</title>
<style>
body {{ font: 14px sans-serif; margin: 2em; }}
img {{ max-width: 100%; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 2px 10px; text-align: left; font-family: monospace; white-space: pre; }}
</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{image}">
{said}
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</body>
</html>
"""


def _new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError as exc:
        raise UsageError(
            "plots need matplotlib, which is not installed", hint="pip install 'dump-ingest[plot]'"
        ) from exc
    except ValueError as exc:  # of its own settings, such as MPLBACKEND
        raise UsageError(f"matplotlib cannot be used: {exc}") from exc
    return NewFigure(figsize=(width, height), layout="constrained")


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "dump-ingest", "svg.fonttype": "none"}):
        # Names may be written in letters that the font does not have, and labels be longer than the figure.
        warnings.simplefilter("ignore")
        figure.savefig(buffer, format=kind, bbox_inches="tight", **options)
    return buffer.getvalue()


def _text(text: Any) -> None:
    """Take a text as it is: between two `$`, matplotlib would see a formula."""
    text.set_parse_math(False)


def _shortened(text: str) -> str:
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return plain if len(plain) <= _MAX_LABEL else f"{plain[:43]}...{plain[-44:]}"


def _is_logarithmic(values: npt.NDArray[np.float64]) -> bool:
    known = values[np.isfinite(values)]
    if not known.size or np.min(known) <= 0:
        return False
    return math.log(np.max(known)) - math.log(np.min(known)) > math.log(_LOGARITHMIC)
