"""Cells in colours of levels: ranks by steps, a ribbon of operators, and the steps of an incident."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from ingest.page.charts import picture, tag, text
from ingest.page.rendering import number, whole
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix
from ingest.questions.plot import LOGARITHMIC
from workers.arrays.spans import divisor_for

#: Colours between the least and the greatest value.
LEVELS = 7
#: The level of values that are all equal.
ONLY_LEVEL = 5


def css_of(level: int) -> str:
    """Return the class of a level: `lv3`; 0 is `zero`, and -1 is `unknown`."""
    return {-1: "unknown", 0: "zero"}.get(level, f"lv{level}")


@dataclass(frozen=True, slots=True)
class Scale:
    """The limits of the levels of values above zero, or of all values if some are negative."""

    low: float
    high: float
    is_logarithmic: bool

    @classmethod
    def of(cls, values: npt.NDArray[np.float64], *, is_count: bool) -> Scale | None:
        """Return the scale of some values, of any shape; None if there are none that need a level.

        Zeros do not: they have a colour of their own, unless values are negative.
        """
        finite = values[np.isfinite(values)]
        has_negative = bool((finite < 0).any())
        shown = finite if has_negative else finite[finite > 0]
        if not shown.size:
            return None
        low, high = float(shown.min()), float(shown.max())
        ratio = math.log(high) - math.log(low) if low > 0 else 0
        return cls(low, high, low > 0 and (is_count or ratio > math.log(LOGARITHMIC)))

    def levels(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the level of each value, 1 to `LEVELS`; 0 for zero; -1 for what is not known."""
        level = np.full(values.shape, -1, np.int64)
        known = np.isfinite(values)
        zero = known & (values == 0) & (self.low > 0)
        level[zero] = 0
        rest = known & ~zero
        level[rest] = np.clip(np.ceil(self._share(values[rest]) * LEVELS), 1, LEVELS).astype(np.int64)
        level[np.isposinf(values)] = LEVELS
        return level

    def limits(self) -> Sequence[float]:
        """Return the limits of the levels, one more than levels."""
        if self.is_logarithmic:
            limits = np.exp(np.linspace(math.log(self.low), math.log(self.high), LEVELS + 1))
        else:
            divisor = divisor_for(self.low, self.high)
            limits = np.linspace(self.low / divisor, self.high / divisor, LEVELS + 1) * divisor
        return [float(limit) for limit in limits]

    def legend(self, *, is_count: bool) -> list[tuple[str, str]]:
        """Return the colours of the levels, each as a class and its words."""
        if self.low == self.high:
            return [(css_of(ONLY_LEVEL), whole(self.low) if is_count else number(self.low))]
        write: Callable[[float], str] = whole if is_count else _rounded
        first, *limits = map(write, self.limits())
        return [("lv1", f"from {first}"), *((css_of(n), f"to {up}") for n, up in enumerate(limits[1:], 2))]

    def _share(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return where between the least and the greatest value each value lies, 0 to 1."""
        if self.low == self.high:
            return np.full(values.shape, ONLY_LEVEL / LEVELS - 1e-9)
        if self.is_logarithmic:
            share = (np.log(values) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            divisor = divisor_for(self.low, self.high)
            share = (values / divisor - self.low / divisor) / (self.high / divisor - self.low / divisor)
        clipped: npt.NDArray[np.float64] = np.clip(share, 0, 1)
        return clipped


def _rounded(limit: float) -> str:
    return number(limit, digits=3)


_WIDTH, _LEFT, _TOP, _BOTTOM = 1080, 64, 8, 34
_MAX_TICKS = 12


def matrix_picture(matrix: Matrix, label: str, *, rows_are: str = "rank") -> Markup:
    """Return the picture. Its attributes say where cells are, for the script that follows the pointer."""
    rows, columns = matrix.values.shape
    width = max(min((_WIDTH - _LEFT) / columns, 112.0), 3.0)
    height = max(min(440 / rows, 44.0), 5.0)
    gap = 1.5 if min(width, height) >= 8 else 0.5 if min(width, height) >= 4 else 0.0
    cells = [
        _path_of_class(places, css, width, height, gap) for css, places in _classes(matrix) if places.any()
    ]
    cells.append(tag("rect", class_="cursor", x=-100, y=-100, width=width, height=height, rx=3))
    cells.append(tag("rect", class_="brush", x=-100, y=-100, width=0, height=0))
    return picture(
        _LEFT + columns * width + 8,
        _TOP + rows * height + _BOTTOM,
        [*_axes(matrix, width, height, rows_are), tag("g", *cells, class_="cells")],
        label,
        class_="plot matrix",
        data_left=_LEFT,
        data_top=_TOP,
        data_cell_width=width,
        data_cell_height=height,
        data_rows=rows,
        data_columns=columns,
    )


def legend(matrix: Matrix) -> list[tuple[str, str]]:
    """Return the colours that a picture has, each as a class and its words."""
    scale = Scale.of(matrix.values, is_count=matrix.is_count)
    entries = []
    if (matrix.values == 0).any() and (scale is None or scale.low > 0):
        entries.append(("zero", "0"))
    if scale is not None:
        entries += scale.legend(is_count=matrix.is_count)
    if (np.isnan(matrix.values) & np.isin(matrix.state, (KNOWN, PARTIAL))).any():
        entries.append(("unknown", "not known"))
    if not matrix.is_count and matrix.bad.any():
        entries.append(("notch", "has NaN or Inf"))
    for state, css, words in (
        (PARTIAL, "partial", "partial step"),
        (DAMAGED, "damaged", "damaged"),
        (MISSING, "missing", "not committed"),
    ):
        if (matrix.state == state).any():
            entries.append((css, words))
    return entries


def _classes(matrix: Matrix) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each class of cells with its places; later ones are drawn above earlier ones."""
    scale = Scale.of(matrix.values, is_count=matrix.is_count)
    level = np.where(np.isnan(matrix.values), -1, 0) if scale is None else scale.levels(matrix.values)
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
    """Return all cells of a class as one path."""
    shift, shape = 0.0, f"h{width - gap:.1f}v{height - gap:.1f}h-{width - gap:.1f}z"
    if css == "notch":
        side, depth = min(width, 12), min(height, 12)
        shift, shape = width - gap, f"v{depth:.1f}l-{side:.1f} -{depth:.1f}z"
    # Numbers are written once for each row and column: writing them for each cell took half of a view's time.
    rows, columns = places.shape
    lefts = [f"M{_LEFT + column * width + shift:.1f} " for column in range(columns)]
    rests = [f"{_TOP + row * height:.1f}{shape}" for row in range(rows)]
    cells = zip(*(numbers.tolist() for numbers in np.nonzero(places)), strict=True)
    return tag("path", d="".join([lefts[column] + rests[row] for row, column in cells]), class_=css)


def _axes(matrix: Matrix, width: float, height: float, rows_are: str) -> Iterator[Markup]:
    rows, columns = matrix.values.shape
    for row in _ticks(rows, max(int(rows * height // 16), 1)):
        y = _TOP + (row + 0.5) * height + 4
        yield text(_LEFT - 8, y, f"{matrix.ranks[row][0]}", class_="tick end")
    for column in _ticks(columns, max(int(columns * width // 44), 1)):
        x = _LEFT + (column + 0.5) * width
        yield text(x, _TOP + rows * height + 14, f"{matrix.steps[column][0]}", class_="tick mid")
    yield text(4, _TOP + min(rows * height, 14), rows_are, class_="axis")
    yield text(_LEFT, _TOP + rows * height + 30, "step", class_="axis")


def _ticks(length: int, limit: int) -> Sequence[int]:
    """Return at most twelve places for numbers, evenly spaced."""
    every = max(-(-length // min(limit, 2 * _MAX_TICKS)), 1)
    return range(0, length, every)


_RIBBON_WIDTH, _RIBBON_HEIGHT = 1080.0, 34.0
#: More operators than this share a stripe.
_MAX_STRIPES = 1080


def ribbon_picture(levels: Sequence[int], bad: Sequence[bool], label: str) -> Markup:
    """Return a stripe for each operator: its colour is its level; a mark below it says NaN or Inf."""
    stripes = min(len(levels), _MAX_STRIPES) or 1
    width = _RIBBON_WIDTH / stripes
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
        _RIBBON_WIDTH,
        _RIBBON_HEIGHT,
        parts,
        label,
        class_="plot ribbon",
        preserveAspectRatio="none",
        data_total=len(levels),
    )


_TIMELINE_WIDTH, _TIMELINE_HEIGHT, _TIMELINE_TOP = 1080.0, 40.0, 2.0
_MAX_BOXES = 180
#: What the number below the first box takes to the left of its middle.
_HALF_NUMBER = 14.0


def timeline_picture(steps: Sequence[int], affected: AbstractSet[int], label: str) -> Markup:
    """Return a box for each step, or for several together; affected ones are marked.

    The script makes boxes narrower in a narrow window, as it does with the cells of a matrix.
    """
    count = max(min(len(steps), _MAX_BOXES), 1)
    width = min(_TIMELINE_WIDTH / count, 46.0)
    gap = 2.0 if width > 8 else 0.5
    left = max(_HALF_NUMBER - (width - gap) / 2, 0.0)
    boxes, numbers = [], []
    every = max(-(-count // max(int(count * width // 38), 1)), 1)
    for box in range(count if steps else 0):
        within = steps[box * len(steps) // count : (box + 1) * len(steps) // count]
        css = "mark" if any(step in affected for step in within) else "zero"
        x = left + box * width
        boxes.append(
            tag("rect", x=x, y=_TIMELINE_TOP, width=width - gap, height=18, rx=min(3, width / 4), class_=css)
        )
        if box % every == 0:
            numbers.append(text(x + (width - gap) / 2, _TIMELINE_TOP + 32, str(within[0]), class_="tick mid"))
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
