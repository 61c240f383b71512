"""Histograms and lines over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from ingest.page.drawing.svg import picture, tag, text
from ingest.page.words import number, whole
from ingest.questions.plot import LOGARITHMIC
from workers.arrays.spans import divisor_for

if TYPE_CHECKING:
    import pandas as pd

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 520.0, 190.0, 72.0, 34.0, 14.0
_LINES_HEIGHT = 230.0
#: What steps take beside the margins: few steps make a picture that fits a phone.
_STEP_WIDTH, _STEPS_WIDTH = 100.0, (200.0, 960.0)
#: The points of a line are marked if there are at most this many: more marks would hide the line.
_POINTS = 200


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
    is_logarithmic = most > LOGARITHMIC * least
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
    parts.append(text(_LEFT, _TOP - 4, words, class_="axis"))
    parts.append(text(_LEFT + (_WIDTH - _LEFT) / 2, _HEIGHT - _BOTTOM + 16, "value", class_="axis mid"))
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


@dataclass(frozen=True, slots=True)
class _Plane:
    """Where steps and values lie in a picture of lines."""

    first: int
    last: int
    steps_width: float
    low: float
    high: float

    @classmethod
    def of(cls, steps: Sequence[int], finite: Sequence[float]) -> _Plane:
        """Return the plane that holds all steps, and all values that are finite."""
        first, last = (steps[0], steps[-1]) if steps else (0, 1)
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        least, most = _STEPS_WIDTH
        return cls(first, last, min(max((len(steps) - 1) * _STEP_WIDTH, least), most), low, high)

    @property
    def width(self) -> float:
        """The width of the picture."""
        return _LEFT + 50 + self.steps_width

    @property
    def bottom(self) -> float:
        """Where the axis of steps lies."""
        return _LINES_HEIGHT - _BOTTOM

    def x(self, step: float) -> float:
        """Return where a step lies."""
        share = (step - self.first) / max(self.last - self.first, 1)
        return _LEFT + 30 + share * self.steps_width

    def y(self, value: float) -> float:
        """Return where a finite value lies; far apart and positive, on a logarithmic axis."""
        low, high = self.low, self.high
        if low == high:
            share = 0.5
        elif low > 0 and high / low > LOGARITHMIC:
            share = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        else:
            divisor = divisor_for(low, high)
            share = (value / divisor - low / divisor) / (high / divisor - low / divisor)
        return self.bottom - 4 - share * (self.bottom - _TOP - 26)


def series_picture(series: Sequence[Series], label: str, here: int | None = None) -> Markup:
    """Return lines over steps. A vertical line is the step looked at.

    A cross at the top says NaN or Inf, in the colour of its line. Lines have dashes of their own: all of
    those that coincide are seen, also in print, and by those who see no colours.
    """
    finite = [value for line in series for value in line.statistics if math.isfinite(value)]
    steps = sorted({step for line in series for step in line.steps})
    plane = _Plane.of(steps, finite)
    parts = []
    if here is not None:
        at = plane.x(here)
        parts.append(tag("line", x1=at, x2=at, y1=_TOP, y2=plane.bottom, class_="here"))
    for place, line in enumerate(series):
        parts += [*_line(plane, place, line), *_crosses(plane, place, line)]
    parts += _labels(plane, steps, has_values=bool(finite))
    return picture(plane.width, _LINES_HEIGHT, parts, label)


def _line(plane: _Plane, place: int, line: Series) -> Iterator[Markup]:
    """Yield a line, and its points if they are few."""
    css = f"s{place % 8}"
    points = [
        (plane.x(step), plane.y(value))
        for step, value in zip(line.steps, line.statistics, strict=True)
        if math.isfinite(value)
    ]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""
    yield tag("path", tag("title", line.name), d=path, class_=f"series {css}")
    if len(points) > _POINTS:
        return
    # Written as they are, because all lines may have hundreds, and a number needs no escaping.
    circles = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" class="series {css}"></circle>' for x, y in points)
    yield Markup("".join(circles))  # noqa: S704  (numbers, and the name of a class)


def _crosses(plane: _Plane, place: int, line: Series) -> Iterator[Markup]:
    """Yield a cross for each step with NaN or Inf; those of neighbouring lines do not hide each other."""
    top = _TOP + 4 + 9 * (place % 2)
    for step, is_bad in zip(line.steps, line.bad, strict=True):
        if is_bad:
            title = tag("title", f"{line.name}: NaN or Inf in step {step}")
            cross = f"M{plane.x(step) - 4:.1f} {top - 4}l8 8m0 -8l-8 8"
            yield tag("path", title, d=cross, class_=f"cross s{place % 8}")


def _labels(plane: _Plane, steps: Sequence[int], *, has_values: bool) -> Iterator[Markup]:
    """Yield the axis of steps, some of their numbers, and the least and the greatest value."""
    yield tag("line", x1=_LEFT, x2=plane.width, y1=plane.bottom, y2=plane.bottom, class_="baseline")
    every = max(-(-len(steps) // 16), 1)
    yield from (text(plane.x(step), plane.bottom + 16, str(step), class_="mid") for step in steps[::every])
    if has_values:
        yield text(_LEFT - 4, plane.y(plane.high) + 4, number(plane.high), class_="end")
        if plane.low != plane.high:
            yield text(_LEFT - 4, plane.y(plane.low) + 4, number(plane.low), class_="end")
    yield text(_LEFT, _LINES_HEIGHT - 2, "step", class_="axis")


def _baseline() -> Markup:
    return tag("line", x1=_LEFT, x2=_WIDTH, y1=_HEIGHT - _BOTTOM, y2=_HEIGHT - _BOTTOM, class_="baseline")
