"""The matrix of ranks and steps as SVG: one path for each colour, so that many cells are a small picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from ingest.page.drawing.scale import LEVELS, Scale, css_of
from ingest.page.drawing.svg import picture, tag, text
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix

_WIDTH, _LEFT, _TOP, _BOTTOM = 1080, 64, 8, 34
_MAX_TICKS = 12


def matrix_picture(matrix: Matrix, label: str, *, rows_are: str = "rank") -> Markup:
    """Return the picture. Its attributes say where cells are, for the script that follows the pointer."""
    rows, columns = matrix.values.shape
    width = max(min((_WIDTH - _LEFT) / columns, 112.0), 3.0)
    height = max(min(440 / rows, 44.0), 5.0)
    gap = 1.5 if min(width, height) >= 8 else 0.5 if min(width, height) >= 4 else 0.0
    cells = [_path(places, css, width, height, gap) for css, places in _classes(matrix) if places.any()]
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
    for number in range(-1, LEVELS + 1):
        yield css_of(number), here & (level == number)
    if not matrix.is_count:
        yield "notch", matrix.bad
    yield "partial", matrix.state == PARTIAL
    yield "damaged", matrix.state == DAMAGED


def _path(places: npt.NDArray[np.bool_], css: str, width: float, height: float, gap: float) -> Markup:
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
