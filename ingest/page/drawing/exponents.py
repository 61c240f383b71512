"""The histogram of signs and binary exponents: positive elements upwards, negative ones downwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from ingest.page.drawing.svg import picture, tag, text
from ingest.page.words import power_of_two, whole
from ingest.questions.plot import LOGARITHMIC
from workers.arrays.compiled.histogram_loops import LOWEST_EXPONENT
from workers.arrays.sketches.histogram import Histogram

_WIDTH, _LEFT, _TOP, _BOTTOM = 520.0, 72.0, 14.0, 34.0
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
    axis = _TOP + (_SIDE if has_positive else 16)
    bottom = axis + _SIDE * has_negative
    parts = [
        tag("g", *_bars(side, counts.lowest, every, axis, height, sign=sign), class_=css)
        for side, sign, css in zip(sides, ("+", "\u2212"), ("bars", "bars below"), strict=True)
    ]
    parts.append(tag("line", x1=_LEFT, x2=_WIDTH, y1=axis, y2=axis, class_="baseline"))
    is_above = height.most in sides[0]
    parts.append(text(_LEFT - 6, _TOP + 8 if is_above else bottom, whole(height.most), class_="end"))
    if has_negative:
        parts.append(text(_LEFT - 6, axis - 6, "positive", class_="end"))
        parts.append(text(_LEFT - 6, axis + 14, "negative", class_="end"))
    parts.append(text(_LEFT, bottom + 18, power_of_two(counts.lowest)))
    parts.append(text(_WIDTH, bottom + 18, power_of_two(counts.highest), class_="end"))
    words = "elements, logarithmic" if height.is_logarithmic else "elements"
    parts.append(text(_LEFT, _TOP - 4, words, class_="axis"))
    parts.append(text(_LEFT + (_WIDTH - _LEFT) / 2, bottom + 18, "absolute value", class_="axis mid"))
    return picture(_WIDTH, bottom + _BOTTOM, parts, label)


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


def _bars(
    counts: Sequence[int], lowest: int, every: int, axis: float, heights: _Heights, *, sign: str
) -> Iterator[Markup]:
    """Yield the bars of one sign."""
    width = (_WIDTH - _LEFT) / len(counts)
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
            x=_LEFT + place * width,
            y=axis - height if sign == "+" else axis,
            width=max(width - 1.5, 1),
            height=height,
            rx=1.5,
        )
