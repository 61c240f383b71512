"""Cells in colours of levels: ranks by steps, a ribbon of operators, and the steps of an incident."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from ingest.page.charts import Scale, picture, tag, text
from ingest.page.rendering import number, whole
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix

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


_WIDTH, _LEFT, _TOP, _BOTTOM = 1080, 64, 8, 34
_MAX_TICKS = 24


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
    bottom = _TOP + rows * height
    names = [
        text(_LEFT - 8, _TOP + (row + 0.5) * height + 4, f"{matrix.ranks[row][0]}", "tick end")
        for row in _ticks(rows, int(rows * height // 16))
    ]
    names += [
        text(_LEFT + (column + 0.5) * width, bottom + 14, f"{matrix.steps[column][0]}", "tick mid")
        for column in _ticks(columns, int(columns * width // 44))
    ]
    names.append(text(4, min(bottom, _TOP + 14), rows_are, "axis"))
    names.append(text(_LEFT, bottom + 30, "step", "axis"))
    return picture(
        _LEFT + columns * width + 8,
        bottom + _BOTTOM,
        [*names, tag("g", *cells, class_="cells")],
        label,
        class_="plot matrix",
        data_left=_LEFT,
        data_top=_TOP,
        data_cell_width=width,
        data_cell_height=height,
        data_rows=rows,
        data_columns=columns,
    )


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


def _ticks(length: int, limit: int) -> range:
    """Return a limited number of places for numbers, evenly spaced."""
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
    width = min(_WIDTH / count, 46.0)
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
