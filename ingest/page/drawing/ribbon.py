"""All operators of a step as one ribbon, in order of execution."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ingest.page.drawing.scale import css_of
from ingest.page.drawing.svg import picture, tag

_WIDTH, _HEIGHT = 1080.0, 34.0
#: More operators than this share a stripe.
_MAX_STRIPES = 1080


def ribbon_picture(levels: Sequence[int], bad: Sequence[bool], label: str) -> Markup:
    """Return a stripe for each operator: its colour is its level; a mark below it says NaN or Inf."""
    stripes = min(len(levels), _MAX_STRIPES) or 1
    width = _WIDTH / stripes
    paths: dict[str, list[str]] = {}
    for stripe in range(stripes if levels else 0):
        begin, end = stripe * len(levels) // stripes, (stripe + 1) * len(levels) // stripes
        css = css_of(max(levels[begin:end]))
        x = stripe * width
        paths.setdefault(css, []).append(f"M{x:.2f} 0h{width:.2f}v24h-{width:.2f}z")
        if any(bad[begin:end]):
            paths.setdefault("mark", []).append(f"M{x:.2f} 27h{max(width, 2):.2f}v6h-{max(width, 2):.2f}z")
    parts = [tag("path", d="".join(moves), class_=css) for css, moves in paths.items()]
    return picture(
        _WIDTH,
        _HEIGHT,
        parts,
        label,
        class_="plot ribbon",
        preserveAspectRatio="none",
        data_total=len(levels),
    )
