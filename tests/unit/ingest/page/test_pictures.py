"""Pictures as SVG, and values as PNG."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib

import numpy as np
import pytest

from ingest.page.charts import (
    ExponentCounts,
    Series,
    matrix_picture,
    overlay,
    ribbon_picture,
    tag,
    timeline_picture,
)
from ingest.page.sheet import MAX_SIDE, Image, image_of
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix
from workers.arrays.histogram import Histogram


def test_text_and_attributes_are_escaped() -> None:
    assert tag("text", "<b>&", class_='"x"', data_name="'<") == (
        '<text class="&#34;x&#34;" data-name="&#39;&lt;">&lt;b&gt;&amp;</text>'
    )


@pytest.mark.parametrize("values", [[], [5.0], [math.nan], [1e-300, 1e300], [-1.7e308, 1.7e308], [0, 5e-324]])
def test_whatever_the_values_are_points_lie_in_the_picture(values: list[float]) -> None:
    drawn = overlay("", [Series("", list(range(len(values))), values, [False] * len(values))], "all").picture
    places = [float(y) for y in re.findall(r'<circle[^>]* cy="([-\d.]+)"', drawn)]
    assert len(places) == sum(map(math.isfinite, values))
    assert all(0 <= y <= 230 for y in places)


def test_values_and_their_sketch_have_the_same_counts() -> None:
    values = np.array([0.3, -0.3, -5, 6, 0, np.nan, np.inf, 100], np.float32)
    known = ExponentCounts.of_values(values.astype(np.float64))
    assert known == ExponentCounts(-2, [1, 0, 0, 0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 0, 0, 0, 0], 1)
    positive, negative = np.zeros((2, 255), np.int64)
    positive[[125, 129, 133]] = 1
    negative[[125, 129]] = 1
    assert ExponentCounts.of_histogram(Histogram(positive, negative, 1, -5, 100)) == known
    nothing = np.zeros(255, np.int64)
    assert ExponentCounts.of_histogram(Histogram(nothing, nothing, 3, 0, 0)) is None


def counts_of(drawn: str) -> dict[str, int]:
    """Return by colour how many cells have it."""
    return {css: path.count("M") for path, css in re.findall(r'<path d="([^"]*)" class="(\w+)"', drawn)}


def test_every_cell_has_one_colour_and_marks_come_above() -> None:
    state = np.array([[KNOWN, PARTIAL, DAMAGED], [MISSING, KNOWN, KNOWN]])
    values = np.array([[0, 1, 9], [np.nan, 0, 0]])
    ranks, steps = ((0, 0), (1, 1)), ((10, 10), (11, 11), (12, 12))
    bad, gaps = values > 5, (state == MISSING).astype(np.int64)
    matrix = Matrix("made", ranks, steps, values, state, gaps, bad, is_count=True)
    counted = counts_of(matrix_picture(matrix, "a <label>"))
    assert (counted.pop("partial"), counted.pop("damaged")) == (1, 1)
    assert (counted["missing"], counted["zero"], sum(counted.values())) == (1, 3, 6)


def test_one_operator_or_step_among_thousands_is_seen() -> None:
    levels = [0] * 5000
    levels[1234] = 7
    drawn = ribbon_picture(levels, [level == 7 for level in levels], "operators")
    assert counts_of(drawn) == {"zero": 1079, "lv7": 1, "mark": 1}
    boxes = re.findall(r'<rect[^>]* class="(\w+)"', timeline_picture(range(10_000), {7_777}, "steps"))
    assert (len(boxes), boxes.count("mark")) == (180, 1)


def pixels(image: Image | None) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    assert image is not None
    data = base64.b64decode(image.url.partition(",")[2])
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    lines = zlib.decompress(data[start + 4 : start + 4 + length])
    return np.frombuffer(lines, np.uint8).reshape(image.height, image.width + 1)[:, 1:]


def test_values_that_are_not_finite_have_colours_of_their_own_and_are_not_lost() -> None:
    image = image_of(np.array([[0, np.nan, 1], [np.inf, -np.inf, 0.5]]))
    assert pixels(image).tolist() == [[0, 253, 252], [254, 255, 126]]
    values = np.zeros((3000, 1000))
    values[1234, 567] = np.nan
    shrunk = pixels(image_of(values))
    assert max(shrunk.shape) <= MAX_SIDE
    assert (shrunk == 253).sum() == 1
