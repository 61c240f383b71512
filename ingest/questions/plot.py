"""Plots as PNG or as a self-contained page of HTML, and when their scales are logarithmic.

matplotlib is an optional dependency. `pyplot` is not used, because it keeps all figures in memory.
"""

from __future__ import annotations

import base64
import html
import io
import math
import warnings
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.question import Drawing, Note, Part, Table, Texts
from ingest.reader.text import printable
from workers.errors import UsageError

#: A figure of matplotlib, which is not installed where types are checked.
Figure: TypeAlias = Any

#: Characters of a label.
_MAX_LABEL = 90
#: What may be wider than the window.
_WIDE = '<div class="wide" tabindex="0">{}</div>'
#: The ratio of the greatest to the least value above which a scale is logarithmic.
LOGARITHMIC = 1000


def is_logarithmic(values: npt.NDArray[np.float64]) -> bool:
    """Return whether a logarithmic scale suits these values: all above zero, and far apart."""
    known = values[np.isfinite(values)]
    if not known.size or np.min(known) <= 0:
        return False
    return math.log(np.max(known)) - math.log(np.min(known)) > math.log(LOGARITHMIC)


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    return _saved(figure, "png", dpi=120)


def page(title: str, parts: Iterable[Part], limit: int = 0, figure: Figure | None = None) -> str:
    """Return a page of HTML with a figure, tables and lines of prose, which loads nothing and runs nothing.

    Args:
        title: the heading.
        parts: what stands below it, in order; drawings of characters are left out.
        limit: the rows of a table; 0 for all.
        figure: what stands before them.
    """
    title = printable(title)
    bodies = []
    if figure is not None:  # as an image, because nothing in an SVG can run there
        image = base64.b64encode(_saved(figure, "svg", metadata={"Date": None})).decode()
        image = f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{image}">'
        bodies.append(_WIDE.format(image))
    for part in parts:
        if isinstance(part, Table):
            bodies.append(_WIDE.format(_table(part, limit)))
        elif not isinstance(part, Drawing):
            texts = part.texts[: limit or None] if isinstance(part, Texts) else [part]
            told = (text.text if isinstance(text, Note) else text for text in texts)
            bodies += [f"<p>{html.escape(text).replace(chr(10), '<br>')}</p>" for text in told]
    body = "\n".join(bodies)
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
{body}
</body>
</html>
"""


def _table(table: Table[Any], limit: int) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(printable(str(cell)))}</td>" for cell in row) + "</tr>"
        for row in table.cells(limit)
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches.

    Raises:
        UsageError: matplotlib is not installed, or cannot be used.
    """
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


def as_plain_text(text: Any) -> None:
    """Show a text as it is: matplotlib would parse what is between two `$` as a formula."""
    text.set_parse_math(False)


def shortened_title(text: str) -> str:
    """Return a title that fits above a figure, without its middle if it is long."""
    plain = printable(text)
    return plain if len(plain) <= _MAX_LABEL else f"{plain[:43]}...{plain[-44:]}"
