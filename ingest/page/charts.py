"""Pictures as SVG: histograms, signs and exponents, lines over steps; cells and lanes.

Everything is escaped. Colours are classes of the stylesheet: one picture for light and dark.

Cells in colours of levels show ranks by steps, a ribbon of operators, and the steps of an incident. Lanes,
one for each rank with collectives between them, show how something bad spread within its step.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from ingest.page.rendering import counted, number, short, whole
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix
from ingest.questions.origin.answer import PARAMETER, PASSAGE, SpreadEdge, SpreadGraph, SpreadNode
from ingest.questions.plot import LOGARITHMIC
from workers.arrays.compiled.kernel_loops import LOWEST_EXPONENT
from workers.arrays.histogram import Histogram
from workers.arrays.statistics import divisor_for


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


class _Bar(NamedTuple):
    """One bar of a histogram: what it is about, and how many elements are above and below the axis."""

    name: str
    above: int
    below: int = 0


def _bars_picture(bars: Sequence[_Bar], ends: tuple[str, str], what: str, label: str) -> Markup:
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
    bars = [_Bar(name, count) for name, count in zip(names, counts, strict=True)]
    return _bars_picture(bars, (number(edges[0]), number(edges[-1])), "value", label)


#: The most bars of exponents: more are put together; and the least, so that a few bars are not blocks.
_MOST_BARS, _LEAST_BARS = 48, 12
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class ExponentCounts(NamedTuple):
    """How many elements have which sign and binary exponent."""

    lowest: int
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
            bars.append(_Bar(" to ".join(map(_power_of_two, powers)), above, below))
        ends = _power_of_two(lowest), _power_of_two(lowest + len(pairs) - 1)
        return _bars_picture(bars, ends, "absolute value", label)


def _power_of_two(exponent: int) -> str:
    return f"2{str(exponent).translate(_RAISED)}"


class Series(NamedTuple):
    """One line: a value for each step, NaN where it is not known."""

    name: str
    steps: list[int]
    statistics: list[float]
    bad: list[bool]


_LINES_HEIGHT = 230.0
#: What steps take beside the margins: few steps make a picture that fits a phone.
_STEP_WIDTH, _STEPS_WIDTH = 100.0, (200.0, 960.0)
#: The points of a line are marked if there are at most this many: more marks would hide the line.
_POINTS = 200
#: Numbers below the axis.
_TICKS = 16


def overlay(title: str, series: Sequence[Series], label: str, here: Sequence[int] = ()) -> dict[str, Any]:
    """Draw lines over steps; return what stands around their picture, too. Vertical lines are steps `here`.

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
    return {
        "title": title,
        "picture": picture(_LEFT + 50 + width, _LINES_HEIGHT, parts, label),
        "names": [line.name for line in series],
        "has_bad": any(chain.from_iterable(line.bad for line in series)),
    }


def _axes(steps: Mapping[int, float], ends: Mapping[float, float]) -> Iterator[Markup]:
    for step, x in steps.items():
        yield text(x, _LINES_HEIGHT - _BOTTOM + 16, str(step), "mid")
    for value, y in ends.items():
        yield text(_LEFT - 4, y + 4, number(value), "end")
    yield text(_LEFT, _LINES_HEIGHT - 2, "step", "axis")


def _drawn_line(line: Series, colour: int, x: Sequence[float], y: Sequence[float]) -> Iterator[Markup]:
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


#: Colours between the least and the greatest value.
LEVELS = 7
#: The level of values that are all equal.
ONLY_LEVEL = 5


def css_of(level: int) -> str:
    """Return the class of a level: `lv3`; 0 is `zero`, and -1 is `unknown`."""
    return {-1: "unknown", 0: "zero"}.get(level, f"lv{level}")


def _scale_of(values: npt.NDArray[np.float64], *, is_count: bool) -> Scale | None:
    """Return the scale of values above zero, which has a colour of its own; of all if some are negative."""
    finite = values[np.isfinite(values)]
    scale = Scale.of(finite if (finite < 0).any() else finite[finite > 0])
    if scale is None or not is_count:
        return scale
    return Scale(scale.low, scale.high, scale.low > 0)


def levels_of(values: npt.NDArray[np.float64], *, is_count: bool) -> npt.NDArray[np.int64]:
    """Return the level of each value, 1 to `LEVELS`; 0 for zero; -1 for what is not known."""
    scale = _scale_of(values, is_count=is_count)
    level = np.where(np.isposinf(values), LEVELS, np.where(values == 0, 0, -1))
    if scale is not None:
        shown = np.isfinite(values) & ((values != 0) | (scale.low <= 0))
        share = np.ceil(scale.share(values[shown]) * LEVELS)
        level[shown] = ONLY_LEVEL if scale.low == scale.high else np.clip(share, 1, LEVELS)
    return level.astype(np.int64)


def level_legend(values: npt.NDArray[np.float64], *, is_count: bool) -> list[tuple[str, str]]:
    """Return the colours of values, each as a class and its words."""
    levels, scale = levels_of(values, is_count=is_count), _scale_of(values, is_count=is_count)
    entries = [("zero", "0")] if (levels == 0).any() else []
    if scale is not None and scale.low == scale.high:
        entries.append((css_of(ONLY_LEVEL), whole(scale.low) if is_count else number(scale.low)))
    elif scale is not None:
        words = [whole(each) if is_count else number(each, digits=3) for each in scale.limits(LEVELS)]
        entries.append(("lv1", f"from {words[0]}"))
        entries += [(css_of(level), f"to {words[level]}") for level in range(2, LEVELS + 1)]
    return entries + [("unknown", "not known")] * bool((levels < 0).any())


#: What can be said of a step besides its value.
_STATES = (
    (PARTIAL, "partial", "partial step"),
    (DAMAGED, "damaged", "damaged"),
    (MISSING, "missing", "not committed"),
)


def legend(matrix: Matrix) -> list[tuple[str, str]]:
    """Return the colours that a picture has, each as a class and its words."""
    known = matrix.values[np.isin(matrix.state, (KNOWN, PARTIAL))]
    entries = level_legend(known, is_count=matrix.is_count)
    if not matrix.is_count and matrix.bad.any():
        entries.append(("notch", "has NaN or Inf"))
    return entries + [(css, words) for state, css, words in _STATES if (matrix.state == state).any()]


_CELLS_WIDTH, _CELLS_LEFT, _CELLS_TOP, _CELLS_BOTTOM = 1080, 64, 8, 34
_MAX_TICKS = 24


def matrix_picture(matrix: Matrix, label: str, *, rows_are: str = "rank") -> Markup:
    """Return the picture. Its attributes say where cells are, for the script that follows the pointer."""
    rows, columns = matrix.values.shape
    width = max(min((_CELLS_WIDTH - _CELLS_LEFT) / columns, 112.0), 3.0)
    height = max(min(440 / rows, 44.0), 5.0)
    gap = 1.5 if min(width, height) >= 8 else 0.5 if min(width, height) >= 4 else 0.0
    cells = [
        _path_of_class(places, css, width, height, gap) for css, places in _classes(matrix) if places.any()
    ]
    cells.append(tag("rect", class_="cursor", x=-100, y=-100, width=width, height=height, rx=3))
    cells.append(tag("rect", class_="brush", x=-100, y=-100, width=0, height=0))
    bottom = _CELLS_TOP + rows * height
    names = [
        text(_CELLS_LEFT - 8, _CELLS_TOP + (row + 0.5) * height + 4, f"{matrix.ranks[row][0]}", "tick end")
        for row in _ticks(rows, int(rows * height // 16))
    ]
    names += [
        text(_CELLS_LEFT + (column + 0.5) * width, bottom + 14, f"{matrix.steps[column][0]}", "tick mid")
        for column in _ticks(columns, int(columns * width // 44))
    ]
    names.append(text(4, min(bottom, _CELLS_TOP + 14), rows_are, "axis"))
    names.append(text(_CELLS_LEFT, bottom + 30, "step", "axis"))
    return picture(
        _CELLS_LEFT + columns * width + 8,
        bottom + _CELLS_BOTTOM,
        [*names, tag("g", *cells, class_="cells")],
        label,
        class_="plot matrix",
        data_left=_CELLS_LEFT,
        data_top=_CELLS_TOP,
        data_cell_width=width,
        data_cell_height=height,
        data_rows=rows,
        data_columns=columns,
    )


#: How far names of rows reach, and what is above them.
_NAMES_WIDTH = 112


def token_picture(
    rows: Sequence[tuple[str, str, str, bool]],
    values: npt.NDArray[np.float64],
    begins: Sequence[tuple[float, str]],
    label: str,
) -> Markup:
    """Return a picture of a number for each row and column, larger ones darker.

    Args:
        rows: their names and titles, the places of the page that they lead to, and whether they are marked.
        values: (row, column); NaN where there is none.
        begins: where groups of columns begin, and their names.
        label: what it shows.
    """
    count, columns = values.shape
    width = max(min((_CELLS_WIDTH - _NAMES_WIDTH) / columns, 28.0), 3.0)
    height = max(min(440 / count, 24.0), 8.0)
    level, gap, bottom = levels_of(values, is_count=False), 0.5, _CELLS_TOP + count * height
    cells = [
        _path_of_class(level == place, css_of(place), width, height, gap)
        for place in range(-1, LEVELS + 1)
        if (level == place).any()
    ]
    parts = [tag("g", *cells, class_="cells", transform=f"translate({_NAMES_WIDTH - _CELLS_LEFT} 0)")]
    last = -np.inf
    for begin, words in begins:
        x = _NAMES_WIDTH + begin * width
        parts.append(tag("path", d=f"M{x - gap:.1f} {_CELLS_TOP}V{bottom + 4:.1f}", class_="grid-line"))
        if x - last > 7 * len(words):
            parts.append(text(x, bottom + 15, words, "tick"))
            last = x
    for place, (row, title, anchor, is_marked) in enumerate(rows):
        top = _CELLS_TOP + place * height
        css = "tick end" + " strong" * is_marked
        name = text(_NAMES_WIDTH - 8, top + height / 2 + 4, short(row, 16), css)
        reach = tag("rect", x=0, y=top, width=_NAMES_WIDTH + columns * width, height=height, class_="reach")
        parts.append(tag("a", tag("title", title), name, reach, href=f"#{anchor}"))
    return picture(_NAMES_WIDTH + columns * width + 8, bottom + 22, parts, label, role="group")


def _classes(matrix: Matrix) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each class of cells with its places; later ones are drawn above earlier ones."""
    level = levels_of(matrix.values, is_count=matrix.is_count)
    here = matrix.state != MISSING
    yield "missing", ~here
    for place in range(-1, LEVELS + 1):
        yield css_of(place), here & (level == place)
    if not matrix.is_count:
        yield "notch", matrix.bad
    yield "partial", matrix.state == PARTIAL
    yield "damaged", matrix.state == DAMAGED


def _path_of_class(
    places: npt.NDArray[np.bool_], css: str, width: float, height: float, gap: float
) -> Markup:
    shift, shape = 0.0, f"h{width - gap:.1f}v{height - gap:.1f}h-{width - gap:.1f}z"
    if css == "notch":
        side, depth = min(width, 12), min(height, 12)
        shift, shape = width - gap, f"v{depth:.1f}l-{side:.1f} -{depth:.1f}z"
    # Numbers are written once for each row and column: writing them for each cell took half of a view's time.
    rows, columns = places.shape
    lefts = [f"M{_CELLS_LEFT + column * width + shift:.1f} " for column in range(columns)]
    rests = [f"{_CELLS_TOP + row * height:.1f}{shape}" for row in range(rows)]
    cells = zip(*(numbers.tolist() for numbers in np.nonzero(places)), strict=True)
    return tag("path", d="".join([lefts[column] + rests[row] for row, column in cells]), class_=css)


def _ticks(length: int, limit: int) -> range:
    return range(0, length, max(-(-length // max(min(limit, _MAX_TICKS), 1)), 1))


_RIBBON_WIDTH, _RIBBON_HEIGHT = 1080.0, 34.0
#: More operators than this share a stripe.
_MAX_STRIPES = 1080


def ribbon_picture(levels: Sequence[int], bad: Sequence[bool], label: str) -> Markup:
    """Return a stripe for each operator: its colour is its level; a mark below it says NaN or Inf."""
    stripes = min(len(levels), _MAX_STRIPES)
    width = _RIBBON_WIDTH / max(stripes, 1)
    paths: dict[str, list[str]] = {}
    for stripe in range(stripes):
        within = slice(stripe * len(levels) // stripes, (stripe + 1) * len(levels) // stripes)
        x, css = stripe * width, css_of(max(levels[within]))
        paths.setdefault(css, []).append(f"M{x:.2f} 0h{width:.2f}v24h-{width:.2f}z")
        if any(bad[within]):
            paths.setdefault("mark", []).append(f"M{x:.2f} 27h{max(width, 2):.2f}v6h-{max(width, 2):.2f}z")
    return picture(
        _RIBBON_WIDTH,
        _RIBBON_HEIGHT,
        [tag("path", d="".join(moves), class_=css) for css, moves in paths.items()],
        label,
        class_="plot ribbon",
        preserveAspectRatio="none",
        data_total=len(levels),
    )


_TIMELINE_HEIGHT, _TIMELINE_TOP = 40.0, 2.0
_MAX_BOXES = 180
#: What the number below the first box takes to the left of its middle.
_HALF_NUMBER = 14.0


def timeline_picture(steps: Sequence[int], affected: AbstractSet[int], label: str) -> Markup:
    """Return a box for each step, or for several together; affected ones are marked.

    The script makes boxes narrower in a narrow window, as it does with the cells of a matrix.
    """
    count = max(min(len(steps), _MAX_BOXES), 1)
    width = min(_CELLS_WIDTH / count, 46.0)
    gap = 2.0 if width > 8 else 0.5
    left = max(_HALF_NUMBER - (width - gap) / 2, 0.0)
    boxes, numbers = [], []
    every = math.ceil(count / max(count * width // 38, 1))
    for box in range(count if steps else 0):
        within = steps[box * len(steps) // count : (box + 1) * len(steps) // count]
        x, css = left + box * width, "zero" if affected.isdisjoint(within) else "mark"
        size = {"width": width - gap, "height": 18, "rx": min(3, width / 4)}
        boxes.append(tag("rect", x=x, y=_TIMELINE_TOP, **size, class_=css))
        if box % every == 0:
            numbers.append(text(x + (width - gap) / 2, _TIMELINE_TOP + 32, str(within[0]), "tick mid"))
    return picture(
        max(left + count * width, 60.0),
        _TIMELINE_HEIGHT,
        [tag("g", *boxes, class_="cells"), *numbers],
        label,
        class_="plot matrix",
        data_left=left,
        data_cell_width=width,
        data_columns=count,
    )


#: Nodes that are drawn; the nearest to the origin first.
_MAX_NODES = 48
_MAX_LANES = 10
#: Operators of one rank that are drawn below each other.
_MAX_ROWS = 6
_LANES_LEFT, _LANES_TOP, _COLUMN, _ROW = 78.0, 4.0, 98.0, 30.0
#: Above the first row of a lane, where edges pass over operators; and the row of a collective between lanes.
_ABOVE, _BETWEEN = 26.0, 26.0
_LABEL = 15
#: What can be read on a sheet of paper that stands upright, where it is drawn at 70 %.
_UPRIGHT = 960


def spread_picture(graph: SpreadGraph) -> dict[str, Any] | None:
    """Return the picture, and how much of the graph is in it; None if nothing was reached."""
    near = _nearest(graph)
    column = _columns(near, graph.edges)
    row = _rows(near, column)
    nodes = {node.id: node for node in near if node.id in row}
    if len(nodes) < 2:
        return None
    tops, height = _lanes(nodes.values(), row)
    places = {
        number: (_LANES_LEFT + column[number] * _COLUMN, tops[node.rank] + row[number] * _ROW)
        for number, node in nodes.items()
    }
    width = max(x for x, _ in places.values()) + _COLUMN
    parts = [*_drawn_lanes(tops, width), *_drawn_edges(graph, nodes, places)]
    for place, node in nodes.items():
        parts += _drawn(node, places[place])
    drawn, total = len(nodes) - 1, len(graph.nodes) - 1
    label = f"The spread from {graph.nodes[0].label} to {counted(total, 'operator')}"
    label += f"; the nearest {drawn} are drawn" if drawn < total else ""
    kinds = {node.kind for node in nodes.values()}
    svg = picture(width, height, parts, label, class_="plot spread")
    return {
        "svg": svg,
        # Whether it needs a sheet of paper that lies on its side.
        "is_wide": width > _UPRIGHT,
        # Operators besides the origin, parameters and collectives.
        "drawn": drawn,
        "total": total,
        "has_passages": PASSAGE in kinds,
        "has_parameters": PARAMETER in kinds,
    }


def _rows(nodes: Sequence[SpreadNode], column: dict[int, int]) -> dict[int, int]:
    taken: Counter[tuple[int | None, int]] = Counter()
    row: dict[int, int] = {}
    for node in nodes:
        spot = node.rank, column[node.id]
        if taken[spot] < _MAX_ROWS:
            row[node.id] = taken[spot]
            taken[spot] += 1
    return row


def _drawn_lanes(tops: dict[int | None, float], width: float) -> Iterator[Markup]:
    for rank, y in tops.items():
        if rank is not None:
            yield tag("line", x1=_LANES_LEFT - 22, x2=width - 10, y1=y, y2=y, class_="lane")
            yield text(8, y + 4, f"rank {rank}", "strong")


def _drawn_edges(
    graph: SpreadGraph, nodes: dict[int, SpreadNode], places: dict[int, tuple[float, float]]
) -> Iterator[Markup]:
    for edge in graph.edges:
        if edge.source in nodes and edge.target in nodes:
            ends = nodes[edge.source], nodes[edge.target]
            (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
            crosses = any(node.kind == PASSAGE for node in ends)
            css = "edge" + " crossing" * crosses + " assumed" * edge.is_assumed
            hint = f"{edge.holds or 'bad'} in {edge.tensor}" if edge.tensor else "through a collective"
            lift = 24 if y1 == y2 and x2 - x1 > 1.5 * _COLUMN else 0
            middle = (x1 + x2) / 2
            bends = f"{middle - lift:.1f} {y1 - lift:.1f} {middle + lift:.1f} {y2 - lift:.1f}"
            path = f"M{x1:.1f} {y1:.1f}C{bends} {x2:.1f} {y2:.1f}"
            yield tag("path", tag("title", hint), d=path, class_=css)


def _nearest(graph: SpreadGraph) -> list[SpreadNode]:
    near = _operators_near(graph)
    ends = ({edge.source, edge.target} for edge in graph.edges)
    beside: set[int] = set().union(*(both for both in ends if both & near))
    return [node for node in graph.nodes if node.id in (beside if node.rank is None else near)]


def _operators_near(graph: SpreadGraph) -> set[int]:
    operators = [node for node in graph.nodes if node.rank is not None]
    ranks = list(dict.fromkeys(node.rank for node in operators))[:_MAX_LANES]
    return set([node.id for node in operators if node.rank in ranks][:_MAX_NODES])


def _columns(nodes: Sequence[SpreadNode], edges: Sequence[SpreadEdge]) -> dict[int, int]:
    """Return for each node the length of the longest way to it, so that edges lead to the right.

    An edge back into a circle does not count: a collective reads what it writes on some ranks.
    """
    column = {node.id: 0 for node in nodes}
    after: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        if edge.source in column and edge.target in column:
            after[edge.source].append(edge.target)
    place: dict[int, int] = {}

    def visit(node: int) -> None:
        if node not in place:
            place[node] = 0
            for target in after[node]:
                visit(target)
            place[node] = -len(order)
            order.append(node)

    order: list[int] = []
    for node in nodes:
        visit(node.id)
    for source in reversed(order):
        for target in after[source]:
            if place[target] > place[source]:
                column[target] = max(column[target], column[source] + 1)
    return column


def _lanes(nodes: Iterable[SpreadNode], row: dict[int, int]) -> tuple[dict[int | None, float], float]:
    """Return where the first row of each rank is, from the top, and the height of all.

    The origin is on top, and collectives, which have no rank, below the middle.
    """
    deepest: dict[int | None, int] = {}
    for node in nodes:
        deepest[node.rank] = max(deepest.get(node.rank, 0), row[node.id])
    ranks = [rank for rank in deepest if rank is not None]
    lanes: list[int | None] = [*ranks[:1], *sorted(ranks[1:])]
    if None in deepest:
        lanes.insert((len(ranks) + 1) // 2, None)
    tops, below = {}, _LANES_TOP
    for rank in lanes:
        tops[rank] = below + (_BETWEEN / 2 if rank is None else _ABOVE)
        below = tops[rank] + deepest[rank] * _ROW + (_BETWEEN / 2 if rank is None else _ROW)
    return tops, below


def _drawn(node: SpreadNode, place: tuple[float, float]) -> tuple[Markup, Markup]:
    x, y = place
    title, name = tag("title", node.label), short(node.op_type, _LABEL)
    if node.kind == PASSAGE:
        shape = tag("path", title, d=f"M{x - 8:.1f} {y:.1f}l8 -8l8 8l-8 8z", class_="node passage")
        return shape, text(x + 12, y + 4, name, "name")
    size, kind, css = (8, "origin", "strong mid") if node.id == 0 else (5.5, node.kind, "name mid")
    circle = tag("circle", title, cx=x, cy=y, r=size, class_=f"node {kind}")
    return circle, text(x, y + 20, name, css)
