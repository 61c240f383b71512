"""Charts as SVG: histograms, signs and exponents, lines over steps.

Everything is escaped. Colours are classes of the stylesheet: one picture for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from ingest.page.rendering import number, power_of_two, whole
from ingest.questions.plot import LOGARITHMIC
from workers.arrays.compiled.histogram_loops import LOWEST_EXPONENT
from workers.arrays.sketches.histogram import Histogram
from workers.arrays.spans import divisor_for

if TYPE_CHECKING:
    import pandas as pd


def tag(name: str, *content: str | Markup, **attributes: object) -> Markup:
    """Return an element. `_` in the names of attributes stands for `-`, a trailing one is dropped.

    Content that is not `Markup` is escaped, and so is every value.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    inner = Markup("").join(escape(part) for part in content)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), Markup(written), inner)  # noqa: S704  (escaped above)


def text(x: float, y: float, words: str, **attributes: object) -> Markup:
    """Return text at a place."""
    return tag("text", words, x=x, y=y, **attributes)


def picture(width: float, height: float, parts: Iterable[Markup], label: str, **attributes: object) -> Markup:
    """Return a whole picture of this size, which readers of a screen are told about by `label`."""
    size = f"0 0 {_text(width)} {_text(height)}"
    given = {"role": "img", "class_": "plot", **attributes}
    return tag(
        "svg",
        tag("title", label),
        *parts,
        viewBox=size,
        width=width,
        height=height,
        aria_label=label,
        **given,
    )


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


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


_EXPONENTS_WIDTH, _EXPONENTS_LEFT, _EXPONENTS_TOP, _EXPONENTS_BOTTOM = 520.0, 72.0, 14.0, 34.0
#: The height of what is above the axis; the same below if any element is negative.
_SIDE = 110.0
#: The most bars of a sign: more exponents are put together.
_BARS = 48
#: The least exponents that are shown, so that a few bars are not blocks.
_LEAST = 12


@dataclass(frozen=True, slots=True)
class ExponentCounts:
    """How many elements have which sign and binary exponent."""

    lowest: int
    """The exponent of the first count."""
    positive: Sequence[int]
    negative: Sequence[int]
    """As many as of `positive`."""
    zeros: int

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> ExponentCounts | None:
        """Return those of a sketch; None if it has no element other than zero."""
        held = np.flatnonzero(histogram.magnitudes)
        if not held.size:
            return None
        first, stop = int(held[0]), int(held[-1]) + 1
        return cls(
            LOWEST_EXPONENT + first,
            histogram.positive[first:stop].tolist(),
            histogram.negative[first:stop].tolist(),
            histogram.zeros,
        )

    @classmethod
    def of_values(cls, values: npt.NDArray[np.float64]) -> ExponentCounts | None:
        """Return those of float64 values; None with fewer than two that are finite and not zero."""
        finite = values[np.isfinite(values)]
        usable = finite[finite != 0]
        if usable.size < 2:
            return None
        exponents = np.frexp(usable)[1] - 1
        lowest = int(exponents.min())
        length = int(exponents.max()) - lowest + 1
        positive, negative = (
            np.bincount(exponents[chosen] - lowest, minlength=length) for chosen in (usable > 0, usable < 0)
        )
        return cls(lowest, positive.tolist(), negative.tolist(), finite.size - usable.size)

    def padded(self, length: int) -> ExponentCounts:
        """Return the counts of at least this many exponents, with those that are held in the middle."""
        lack = max(length - len(self.positive), 0)
        before, after = [0] * (lack // 2), [0] * (lack - lack // 2)
        positive, negative = ([*before, *side, *after] for side in (self.positive, self.negative))
        return ExponentCounts(self.lowest - len(before), positive, negative, self.zeros)

    @property
    def highest(self) -> int:
        """The exponent of the last count."""
        return self.lowest + len(self.positive) - 1


def exponents_picture(counts: ExponentCounts, label: str) -> Markup:
    """Return the histogram. Counts far apart have logarithmic heights, so that a single element is seen."""
    counts = counts.padded(_LEAST)
    every = -(-len(counts.positive) // _BARS)
    sides = [_together(side, every) for side in (counts.positive, counts.negative)]
    height = _Heights.of([count for side in sides for count in side])
    has_positive, has_negative = map(any, sides)
    axis = _EXPONENTS_TOP + (_SIDE if has_positive else 16)
    bottom = axis + _SIDE * has_negative
    parts = [
        tag("g", *_bars_of_sign(side, counts.lowest, every, axis, height, sign=sign), class_=css)
        for side, sign, css in zip(sides, ("+", "\u2212"), ("bars", "bars below"), strict=True)
    ]
    parts.append(tag("line", x1=_EXPONENTS_LEFT, x2=_EXPONENTS_WIDTH, y1=axis, y2=axis, class_="baseline"))
    is_above = height.most in sides[0]
    parts.append(
        text(
            _EXPONENTS_LEFT - 6, _EXPONENTS_TOP + 8 if is_above else bottom, whole(height.most), class_="end"
        )
    )
    if has_negative:
        parts.append(text(_EXPONENTS_LEFT - 6, axis - 6, "positive", class_="end"))
        parts.append(text(_EXPONENTS_LEFT - 6, axis + 14, "negative", class_="end"))
    parts.append(text(_EXPONENTS_LEFT, bottom + 18, power_of_two(counts.lowest)))
    parts.append(text(_EXPONENTS_WIDTH, bottom + 18, power_of_two(counts.highest), class_="end"))
    words = "elements, logarithmic" if height.is_logarithmic else "elements"
    parts.append(text(_EXPONENTS_LEFT, _EXPONENTS_TOP - 4, words, class_="axis"))
    parts.append(
        text(
            _EXPONENTS_LEFT + (_EXPONENTS_WIDTH - _EXPONENTS_LEFT) / 2,
            bottom + 18,
            "absolute value",
            class_="axis mid",
        )
    )
    return picture(_EXPONENTS_WIDTH, bottom + _EXPONENTS_BOTTOM, parts, label)


@dataclass(frozen=True, slots=True)
class _Heights:
    """How high a count is drawn."""

    most: int
    is_logarithmic: bool

    @classmethod
    def of(cls, counts: Sequence[int]) -> _Heights:
        held = [count for count in counts if count]
        return cls(max(held), max(held) > LOGARITHMIC * min(held))

    def of_count(self, count: int) -> float:
        """Return the height of a count above zero."""
        if self.is_logarithmic:
            share = (math.log(count) + 0.4) / (math.log(self.most) + 0.4)
        else:
            share = count / self.most
        return max(share * _SIDE, 2)


def _together(counts: Sequence[int], every: int) -> list[int]:
    return [sum(counts[start : start + every]) for start in range(0, len(counts), every)]


def _bars_of_sign(
    counts: Sequence[int], lowest: int, every: int, axis: float, heights: _Heights, *, sign: str
) -> Iterator[Markup]:
    """Yield the bars of one sign."""
    width = (_EXPONENTS_WIDTH - _EXPONENTS_LEFT) / len(counts)
    for place, count in enumerate(counts):
        if not count:
            continue
        height = heights.of_count(count)
        first = lowest + place * every
        ends = dict.fromkeys((first, first + every - 1))
        powers = " to ".join(map(power_of_two, ends))
        yield tag(
            "rect",
            tag("title", f"{sign}{powers}: {whole(count)}"),
            x=_EXPONENTS_LEFT + place * width,
            y=axis - height if sign == "+" else axis,
            width=max(width - 1.5, 1),
            height=height,
            rx=1.5,
        )
