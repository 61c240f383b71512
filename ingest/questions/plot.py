"""Plot trends, and fields of ranks and steps, as PNG or as a self-contained page of HTML.

matplotlib is an optional dependency. `pyplot` is not used, because it keeps all figures in memory.
"""

from __future__ import annotations

import base64
import html
import io
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ingest.questions.heatmap_scale import HeatmapScale, is_logarithmic, wholes, zeros
from ingest.questions.trend_figure import Line, draw_lines, height_of
from ingest.reader.text import printable
from workers.arrays.aggregate import ABOUT_NON_FINITE
from workers.errors import UsageError

if TYPE_CHECKING:
    import xarray as xr

#: A figure of matplotlib, which is not installed where types are checked.
Figure: TypeAlias = Any

#: Characters of a label.
_MAX_LABEL = 90
_MAX_TICKS = 32
#: How far below the axes the legend of a heatmap is: below the numbers and the name of the axis.
_BELOW_INCHES = 0.6
_BAD_COLOR = "#c00000"
#: Cells of a heatmap that are not on its scale.
_GAP_COLOR, _ZERO_COLOR, _WHOLE_COLOR = "#d0d0d0", "#ffffff", "#ff8c00"


def trend_figure(title: str, steps: Sequence[int], lines: Sequence[Line], statistic: str) -> Figure:
    """Draw a line for each tensor and rank, with gaps if it is absent, and red crosses for NaN and Inf.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure = _new_figure(12, height_of(lines))
    axes = figure.add_subplot()
    if lines:
        draw_lines(axes, np.array(steps), lines)
    _as_plain_text(axes.set_xlabel("step"))
    _as_plain_text(axes.set_ylabel(statistic))
    axes.xaxis.get_major_locator().set_params(integer=True)
    _as_plain_text(axes.set_title(_shortened(title), fontsize=10, loc="left"))
    return figure


def heatmap_figure(title: str, field: xr.DataArray) -> Figure:
    """Draw ranks over steps: grey if absent, white for zero, orange for all, red crosses for NaN and Inf.

    Raises:
        UsageError: matplotlib is not installed.
    """
    ranks, steps = field["rank"].values, field["step"].values
    figure = _new_figure(min(4 + 0.3 * len(steps), 14), min(2 + 0.25 * len(ranks), 12))
    axes = figure.add_subplot()
    axes.set_facecolor(_GAP_COLOR)
    image = _draw_field(axes, field)
    is_bad = field["non_finite"].values > 0
    rows, columns = np.nonzero(is_bad & (field.name not in ABOUT_NON_FINITE))
    axes.plot(columns, rows, "x", color=_BAD_COLOR, linestyle="none")
    for axis, numbers, set_labels in (
        (axes.yaxis, ranks, axes.set_yticklabels),
        (axes.xaxis, steps, axes.set_xticklabels),
    ):
        places = np.arange(0, len(numbers), _stride(len(numbers)))
        axis.set_ticks(places)
        set_labels([str(numbers[place]) for place in places], fontsize=7)
    _as_plain_text(axes.set_xlabel("step"))
    _as_plain_text(axes.set_ylabel("rank"))
    _as_plain_text(axes.set_title(_shortened(title), fontsize=10, loc="left"))
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
    known = between[np.isfinite(between)]
    is_log = is_logarithmic(between) or HeatmapScale.of(field).has_logarithmic_counts
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
    return image if known.size else None


def _stride(count: int) -> int:
    """Return the least of 1, 2, 5, 10, 20 ... with which at most `_MAX_TICKS` of these places have a tick."""
    strides = (factor * int(10**power) for power in range(len(str(count)) + 1) for factor in (1, 2, 5))
    return next(stride for stride in strides if stride * _MAX_TICKS >= count)


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    return _saved(figure, "png", dpi=120)


def page(
    title: str, figure: Figure, columns: Sequence[str], rows: Iterable[Sequence[str]], remarks: Sequence[str]
) -> str:
    """Return a page of HTML with a figure and a table, which loads nothing and runs nothing."""
    # As an image, because nothing in an SVG can run there.
    image = base64.b64encode(_saved(figure, "svg", metadata={"Date": None})).decode()
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    paragraphs = "\n".join(f"<p>{html.escape(remark)}</p>" for remark in remarks)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{html.escape(title)}</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff; }}
h1 {{ font-size: 1.3em; overflow-wrap: anywhere; }}
img {{ max-width: 100%; background: #fff; }}
@media (max-width: 600px) {{ img {{ max-width: none; }} }}
.wide {{ overflow-x: auto; }}
@media screen and (prefers-color-scheme: dark) {{ body {{ color: #ddd; background: #1b1b1b; }} }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 2px 10px; text-align: left; font-family: monospace; white-space: pre; }}
</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<div class="wide" tabindex="0"><img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{image}"></div>
{paragraphs}
<div class="wide" tabindex="0">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
</body>
</html>
"""


def _new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure as NewFigure  # deferred: matplotlib is optional
    except ImportError as exc:
        raise UsageError(
            "plots need matplotlib, which is not installed", hint="pip install 'dump-ingest[plot]'"
        ) from exc
    except ValueError as exc:  # matplotlib's own settings are wrong, such as MPLBACKEND
        raise UsageError(f"matplotlib cannot be used: {exc}") from exc
    return NewFigure(figsize=(width, height), layout="constrained")


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    from matplotlib import rc_context  # deferred: matplotlib is optional

    buffer = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "dump-ingest", "svg.fonttype": "none"}):
        # The font may lack letters of names, and labels may be longer than the figure.
        warnings.simplefilter("ignore")
        try:
            figure.savefig(buffer, format=kind, bbox_inches="tight", **options)
        except (ValueError, OverflowError) as exc:  # it places its ticks by differences and ratios
            raise UsageError(
                f"matplotlib cannot draw numbers that are so large or so far apart: {exc}",
                hint="Without a plot, the same command prints them.",
            ) from exc
    return buffer.getvalue()


def _as_plain_text(text: Any) -> None:
    """Show a text as it is: matplotlib would parse what is between two `$` as a formula."""
    text.set_parse_math(False)


def _shortened(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _MAX_LABEL else f"{plain[:43]}...{plain[-44:]}"
