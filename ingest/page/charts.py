"""Charts as SVG: histograms, signs and exponents, lines over steps.

Everything is escaped. Colours are classes of the stylesheet: one picture for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from ingest.page.rendering import number, whole
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
        if value not in (None, "")
    )
    inner = Markup("").join(escape(part) for part in content)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), Markup(written), inner)  # noqa: S704  (escaped above)


def text(x: float, y: float, words: str, css: str = "") -> Markup:
    """Return text at a place."""
    return tag("text", words, x=x, y=y, class_=css)


def picture(width: float, height: float, parts: Iterable[Markup], label: str, **attributes: object) -> Markup:
    """Return a whole picture of this size, which readers of a screen are told about by `label`."""
    size = {"viewBox": f"0 0 {_text(width)} {_text(height)}", "width": width, "height": height}
    given = {**size, "aria_label": label, "role": "img", "class_": "plot", **attributes}
    return tag("svg", tag("title", label), *parts, **given)


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Scale:
    """What lies between two values; logarithmic if they are far apart, and positive."""

    low: float
    high: float
    is_logarithmic: bool

    @classmethod
    def of(cls, finite: npt.NDArray[np.float64]) -> Scale | None:
        """Return the scale of some values; None if there is none."""
        if not finite.size:
            return None
        low, high = float(finite.min()), float(finite.max())
        return cls(low, high, low > 0 and math.log(high) - math.log(low) > math.log(LOGARITHMIC))

    def share(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return where between the least and the greatest value each value lies, 0 to 1."""
        given = np.asarray(values, np.float64)
        if self.low == self.high:
            return np.full(given.shape, 0.5)
        if self.is_logarithmic:
            share = (np.log(given) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            divisor = divisor_for(self.low, self.high)
            share = (given / divisor - self.low / divisor) / (self.high / divisor - self.low / divisor)
        clipped: npt.NDArray[np.float64] = np.clip(share, 0, 1)
        return clipped

    def limits(self, count: int) -> list[float]:
        """Return the ends of this many parts of equal width, one more than parts."""
        if self.is_logarithmic:
            limits = np.exp(np.linspace(math.log(self.low), math.log(self.high), count + 1))
        else:
            divisor = divisor_for(self.low, self.high)
            limits = np.linspace(self.low / divisor, self.high / divisor, count + 1) * divisor
        return [float(limit) for limit in limits]


_LEFT, _TOP, _BOTTOM = 72.0, 14.0, 34.0
_WIDTH = 520.0
#: How high bars are: of one sign, and of each sign if there are both.
_HEIGHT, _SIDE = 142.0, 110.0


class Bar(NamedTuple):
    """One bar of a histogram: what it is about, and how many elements are above and below the axis."""

    name: str
    above: int
    below: int = 0


def bars_picture(bars: Sequence[Bar], ends: tuple[str, str], what: str, label: str) -> Markup:
    """Return a histogram. Counts far apart have a logarithmic axis, so that a single element is seen.

    Args:
        bars: from left to right.
        ends: what is written below the first and the last.
        what: what they are about.
        label: what all of it is about.
    """
    above, below = ([getattr(bar, side) for bar in bars] for side in ("above", "below"))
    counts = [*filter(None, above), *filter(None, below)]
    most, is_logarithmic = max(counts), max(counts) > LOGARITHMIC * min(counts)
    has_below = any(below)
    full = _SIDE if has_below else _HEIGHT
    axis = _TOP + (full if any(above) else 16)
    bottom, width = axis + full * has_below, (_WIDTH - _LEFT) / len(bars)

    def drawn(side: Sequence[int], sign: str) -> Iterator[Markup]:
        for place, count in enumerate(side):
            if count:
                share = (math.log(count) + 0.4) / (math.log(most) + 0.4) if is_logarithmic else count / most
                height = max(share * full, 2)
                size = {"width": max(width - 1.5, 1), "height": height, "rx": 1.5}
                title = tag("title", f"{sign}{bars[place].name}: {whole(count)}")
                yield tag("rect", title, x=_LEFT + place * width, y=axis - height * (not sign), **size)

    words = "elements, logarithmic" if is_logarithmic else "elements"
    parts = [
        tag("g", *drawn(above, ""), class_="bars"),
        tag("g", *drawn(below, "\u2212"), class_="bars below"),
        tag("line", x1=_LEFT, x2=_WIDTH, y1=axis, y2=axis, class_="baseline"),
        text(_LEFT - 6, _TOP + 8 if most in above else bottom, whole(most), "end"),
        text(_LEFT, bottom + 17, ends[0]),
        text(_WIDTH, bottom + 17, ends[1], "end"),
        text(_LEFT, _TOP - 4, words, "axis"),
        text(_LEFT + (_WIDTH - _LEFT) / 2, bottom + 17, what, "axis mid"),
    ]
    if has_below:
        parts += [text(_LEFT - 6, axis - 6, "positive", "end"), text(_LEFT - 6, axis + 14, "negative", "end")]
    return picture(_WIDTH, bottom + _BOTTOM, parts, label)


def histogram_picture(edges: Sequence[float], counts: Sequence[int], label: str) -> Markup:
    """Return the histogram of values between edges."""
    names = (f"{number(low)} to {number(high)}" for low, high in pairwise(edges))
    bars = [Bar(name, count) for name, count in zip(names, counts, strict=True)]
    return bars_picture(bars, (number(edges[0]), number(edges[-1])), "value", label)


#: The most bars of exponents: more are put together; and the least, so that a few bars are not blocks.
_MOST_BARS, _LEAST_BARS = 48, 12
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class ExponentCounts(NamedTuple):
    """How many elements have which sign and binary exponent."""

    lowest: int
    """The exponent of the first count."""
    positive: list[int]
    negative: list[int]
    """As many as of `positive`."""
    zeros: int

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> ExponentCounts | None:
        """Return those of a sketch; None if it has no element other than zero."""
        held = np.flatnonzero(histogram.magnitudes)
        if not held.size:
            return None
        span = slice(int(held[0]), int(held[-1]) + 1)
        positive, negative = (side[span].tolist() for side in (histogram.positive, histogram.negative))
        return cls(LOWEST_EXPONENT + span.start, positive, negative, histogram.zeros)

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
            np.bincount(exponents[chosen] - lowest, minlength=length).tolist()
            for chosen in (usable > 0, usable < 0)
        )
        return cls(lowest, positive, negative, finite.size - usable.size)

    def picture(self, label: str) -> Markup:
        """Return the histogram."""
        lack = max(_LEAST_BARS - len(self.positive), 0)
        lowest = self.lowest - lack // 2
        before, after = [0] * (lack // 2), [0] * (lack - lack // 2)
        sides = ([*before, *side, *after] for side in (self.positive, self.negative))
        pairs = list(zip(*sides, strict=True))
        every = -(-len(pairs) // _MOST_BARS)
        bars = []
        for first in range(0, len(pairs), every):
            powers = dict.fromkeys((lowest + first, lowest + first + every - 1))
            above, below = map(sum, zip(*pairs[first : first + every], strict=True))
            bars.append(Bar(" to ".join(map(_power_of_two, powers)), above, below))
        ends = _power_of_two(lowest), _power_of_two(lowest + len(pairs) - 1)
        return bars_picture(bars, ends, "absolute value", label)


def _power_of_two(exponent: int) -> str:
    """Return a power of two such as `2⁻⁶`."""
    return f"2{str(exponent).translate(_RAISED)}"


class Series(NamedTuple):
    """One line: a value for each step, NaN where it is not known."""

    name: str
    steps: list[int]
    statistics: list[float]
    bad: list[bool]


def series_by_rank(frame: pd.DataFrame, before: str = "") -> list[Series]:
    """Return a line for each rank of rows of one tensor, as `trend` has them; `before` begins their names."""
    return [
        Series(
            f"{before}rank {rank}",
            rows["step"].tolist(),
            rows["value"].tolist(),
            (rows["non_finite"] > 0).tolist(),
        )
        for rank, rows in frame.groupby("rank")
    ]


_LINES_HEIGHT = 230.0
#: What steps take beside the margins: few steps make a picture that fits a phone.
_STEP_WIDTH, _STEPS_WIDTH = 100.0, (200.0, 960.0)
#: The points of a line are marked if there are at most this many: more marks would hide the line.
_POINTS = 200
#: Numbers below the axis.
_TICKS = 16


class Overlay(NamedTuple):
    """Lines over steps, with what stands around their picture."""

    title: str
    picture: Markup
    names: list[str]
    has_bad: bool
    """Whether a cross marks NaN or Inf."""


def overlay(title: str, series: Sequence[Series], label: str, here: Sequence[int] = ()) -> Overlay:
    """Draw lines over steps. Vertical lines are steps that are looked at.

    A cross at the top says NaN or Inf, in the colour of its line. Lines have dashes of their own: all of
    those that coincide are seen, also in print, and by those who see no colours.
    """
    steps = sorted(set(chain.from_iterable(line.steps for line in series))) or [0]
    known = np.array([*chain.from_iterable(line.statistics for line in series)], np.float64)
    scale = Scale.of(known[np.isfinite(known)]) or Scale(0, 0, is_logarithmic=False)
    width = min(max((len(steps) - 1) * _STEP_WIDTH, _STEPS_WIDTH[0]), _STEPS_WIDTH[1])
    bottom = _LINES_HEIGHT - _BOTTOM
    across = width / max(steps[-1] - steps[0], 1)

    def x(step: int) -> float:
        return _LEFT + 30 + (step - steps[0]) * across

    def y(values: Sequence[float]) -> list[float]:
        with np.errstate(invalid="ignore", divide="ignore"):
            heights: list[float] = (bottom - 4 - scale.share(values) * (bottom - _TOP - 26)).tolist()
        return heights

    parts = [tag("line", x1=x(at), x2=x(at), y1=_TOP, y2=bottom, class_="here") for at in here]
    for place, line in enumerate(series):
        parts += _drawn_line(line, place % 8, list(map(x, line.steps)), y(line.statistics))
    parts.append(tag("line", x1=_LEFT, x2=_LEFT + 50 + width, y1=bottom, y2=bottom, class_="baseline"))
    ends = list(dict.fromkeys((scale.high, scale.low))) if np.isfinite(known).any() else []
    ticks = steps[:: -(-len(steps) // _TICKS)]
    parts += _axes(dict(zip(ticks, map(x, ticks), strict=True)), dict(zip(ends, y(ends), strict=True)))
    return Overlay(
        title,
        picture(_LEFT + 50 + width, _LINES_HEIGHT, parts, label),
        [line.name for line in series],
        any(chain.from_iterable(line.bad for line in series)),
    )


def _axes(steps: Mapping[int, float], ends: Mapping[float, float]) -> Iterator[Markup]:
    """Yield the numbers of steps and of the least and greatest value, each by where it stands."""
    for step, x in steps.items():
        yield text(x, _LINES_HEIGHT - _BOTTOM + 16, str(step), "mid")
    for value, y in ends.items():
        yield text(_LEFT - 4, y + 4, number(value), "end")
    yield text(_LEFT, _LINES_HEIGHT - 2, "step", "axis")


def _drawn_line(line: Series, colour: int, x: Sequence[float], y: Sequence[float]) -> Iterator[Markup]:
    """Yield a line, its points if they are few, and its crosses, which leave room for those of others."""
    known = zip(x, y, line.statistics, strict=True)
    points = [(across, down) for across, down, value in known if math.isfinite(value)]
    path = "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in points) if points else ""
    yield tag("path", tag("title", line.name), d=path, class_=f"series s{colour}")
    if len(points) <= _POINTS:
        # Written as they are, because all lines may have hundreds, and a number needs no escaping.
        circle = f'<circle cx="{{:.1f}}" cy="{{:.1f}}" r="2.6" class="series s{colour}"></circle>'
        yield Markup("".join(circle.format(*point) for point in points))  # noqa: S704  (numbers)
    top = _TOP + 4 + 9 * (colour % 2)
    for step, across, is_bad in zip(line.steps, x, line.bad, strict=True):
        if is_bad:
            title = tag("title", f"{line.name}: NaN or Inf in step {step}")
            yield tag(
                "path", title, d=f"M{across - 4:.1f} {top - 4}l8 8m0 -8l-8 8", class_=f"cross s{colour}"
            )
