"""Histograms and lines over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from ingest.page.drawing.svg import picture, tag, text
from ingest.page.words import number, whole

if TYPE_CHECKING:
    import pandas as pd

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 520.0, 190.0, 60.0, 34.0, 14.0
#: The ratio of the greatest to the least value above which an axis is logarithmic.
_LOGARITHMIC = 1000


def bars(
    labels: Sequence[str], counts: Sequence[int], label: str, *, ticks: tuple[str, str] | None = None
) -> Markup:
    """Return a histogram. Counts far apart have a logarithmic axis, so that a single element is seen.

    Args:
        labels: what each bar is about.
        counts: its height.
        label: what all of it is about.
        ticks: what is written at the ends; None for the first and the last label.
    """
    most = max(counts, default=0)
    least = min((count for count in counts if count), default=1)
    is_logarithmic = most > _LOGARITHMIC * least
    plot_height = _HEIGHT - _BOTTOM - _TOP
    width = (_WIDTH - _LEFT) / max(len(counts), 1)
    drawn = []
    for place, count in enumerate(counts):
        if not count:
            continue
        share = (math.log(count) + 0.4) / (math.log(most) + 0.4) if is_logarithmic else count / most
        height = max(share * plot_height, 2)
        hint = tag("title", f"{labels[place]}: {whole(count)}")
        drawn.append(
            tag(
                "rect",
                hint,
                x=_LEFT + place * width,
                y=_HEIGHT - _BOTTOM - height,
                width=max(width - 1.5, 1),
                height=height,
                rx=1.5,
            )
        )
    parts = [tag("g", *drawn, class_="bars"), _baseline()]
    begin, end = ticks or (labels[0], labels[-1])
    parts.append(text(_LEFT, _HEIGHT - _BOTTOM + 16, begin))
    parts.append(text(_WIDTH, _HEIGHT - _BOTTOM + 16, end, class_="end"))
    parts.append(text(_LEFT - 6, _TOP + 8, whole(most), class_="end"))
    words = "elements, logarithmic" if is_logarithmic else "elements"
    parts.append(text(_LEFT + (_WIDTH - _LEFT) / 2, _HEIGHT - _BOTTOM + 16, words, class_="axis mid"))
    return picture(_WIDTH, _HEIGHT, parts, label)


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a value for each step, None where it is not known."""

    name: str
    steps: Sequence[int]
    statistics: Sequence[float]
    bad: Sequence[bool]


def series_by_rank(frame: pd.DataFrame, before: str = "") -> list[Series]:
    """Return a line for each rank of a table that `trend` has made.

    Args:
        frame: Rows of one tensor.
        before: Stands before `rank 3` in the name of a line.
    """
    return [
        Series(
            f"{before}rank {rank}",
            rows["step"].tolist(),
            rows["value"].tolist(),
            (rows["non_finite"] > 0).tolist(),
        )
        for rank, rows in frame.groupby("rank")
    ]


def series_picture(series: Sequence[Series], label: str, here: int | None = None) -> Markup:
    """Return lines over steps. A cross at the top says NaN or Inf; a vertical line is the step looked at."""
    finite = [value for line in series for value in line.statistics if math.isfinite(value)]
    steps = sorted({step for line in series for step in line.steps})
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    is_logarithmic = low > 0 and high / low > _LOGARITHMIC
    width, height = 1080.0, 230.0
    first, last = (steps[0], steps[-1]) if steps else (0, 1)

    def x(step: float) -> float:
        return _LEFT + 30 + (step - first) / max(last - first, 1) * (width - _LEFT - 50)

    def y(value: float) -> float:
        if low == high:
            share = 0.5
        elif is_logarithmic:
            share = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        else:
            share = (value / 2 - low / 2) / (high / 2 - low / 2)
        return height - _BOTTOM - 4 - share * (height - _BOTTOM - _TOP - 22)

    parts = []
    if here is not None:
        parts.append(tag("line", x1=x(here), x2=x(here), y1=_TOP, y2=height - _BOTTOM, class_="lane"))
    for place, line in enumerate(series):
        css = f"s{place % 8}"
        points = [
            (x(step), y(value))
            for step, value in zip(line.steps, line.statistics, strict=True)
            if math.isfinite(value)
        ]
        path = "M" + "L".join(f"{at[0]:.1f} {at[1]:.1f}" for at in points) if points else ""
        parts.append(tag("path", tag("title", line.name), d=path, class_=f"series {css}"))
        parts += [tag("circle", cx=at[0], cy=at[1], r=2.6, class_=f"series {css}") for at in points[:200]]
        for step, is_bad in zip(line.steps, line.bad, strict=True):
            if is_bad:
                at, top = x(step), _TOP + 4 + 3 * (place % 3)
                d = f"M{at - 4:.1f} {top - 4}l8 8m0 -8l-8 8"
                parts.append(
                    tag(
                        "path",
                        tag("title", f"{line.name}: NaN or Inf in step {step}"),
                        d=d,
                        class_="edge crossing",
                    )
                )
    parts.append(tag("line", x1=_LEFT, x2=width, y1=height - _BOTTOM, y2=height - _BOTTOM, class_="baseline"))
    every = max(-(-len(steps) // 16), 1)
    parts += [text(x(step), height - _BOTTOM + 16, str(step), class_="mid") for step in steps[::every]]
    parts.append(
        text(_LEFT - 4, y(high) + 4 if finite else _TOP, number(high) if finite else "", class_="end")
    )
    if low != high and finite:
        parts.append(text(_LEFT - 4, y(low) + 4, number(low), class_="end"))
    parts.append(text(_LEFT, height - 2, "step", class_="axis"))
    return picture(width, height, parts, label)


def _baseline() -> Markup:
    return tag("line", x1=_LEFT, x2=_WIDTH, y1=_HEIGHT - _BOTTOM, y2=_HEIGHT - _BOTTOM, class_="baseline")
