"""Charts as SVG."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from ingest.page.charts import (
    ExponentCounts,
    Series,
    exponents_picture,
    series_picture,
    tag,
)
from workers.arrays.sketches.histogram import Histogram


def test_text_and_attributes_are_escaped() -> None:
    assert tag("text", "<b>&", class_='"x"', data_name="'<") == (
        '<text class="&#34;x&#34;" data-name="&#39;&lt;">&lt;b&gt;&amp;</text>'
    )


def test_lines_have_gaps_where_values_are_not_finite() -> None:
    line = Series("rank <0>", [1, 2, 3], [1.0, math.nan, 3.0], [False, True, False])
    drawn = series_picture([line], "l2_norm", here=2)
    assert drawn.count("<circle") == 2
    assert "rank &lt;0&gt;: NaN or Inf in step 2" in drawn
    assert drawn.count('class="cross s0"') == 1
    assert 'class="here"' in drawn


@pytest.mark.parametrize("values", [[], [5.0], [math.nan], [1e-300, 1e300], [-1.7e308, 1.7e308], [0, 5e-324]])
def test_whatever_the_values_are_points_lie_in_the_picture(values: list[float]) -> None:
    drawn = series_picture([Series("", list(range(len(values))), values, [False] * len(values))], "all")
    places = [float(y) for y in re.findall(r'<circle[^>]* cy="([-\d.]+)"', drawn)]
    assert len(places) == sum(map(math.isfinite, values))
    assert all(0 <= y <= 230 for y in places)


def test_values_and_their_sketch_have_the_same_counts() -> None:
    values = np.array([0.3, -0.3, -5, 6, 0, np.nan, np.inf, 100], np.float32)
    known = ExponentCounts.of_values(values.astype(np.float64))
    assert known == ExponentCounts(-2, [1, 0, 0, 0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 0, 0, 0, 0], 1)
    assert known.highest == 6
    positive, negative = np.zeros((2, 255), np.int64)
    positive[[125, 129, 133]] = 1
    negative[[125, 129]] = 1
    assert ExponentCounts.of_histogram(Histogram(positive, negative, 1, -5, 100)) == known
    nothing = np.zeros(255, np.int64)
    assert ExponentCounts.of_histogram(Histogram(nothing, nothing, 3, 0, 0)) is None


def test_many_exponents_share_a_bar_and_a_single_element_is_seen() -> None:
    counts = [1] + [10**6] * 199
    drawn = exponents_picture(ExponentCounts(-100, counts, [0] * 200, 0), "exponents")
    assert "elements, logarithmic" not in drawn  # five exponents share a bar: none is small
    assert len(re.findall("<rect", drawn)) == 40
    assert "2⁻¹⁰⁰ to 2⁻⁹⁶" in drawn
    assert "logarithmic" in exponents_picture(ExponentCounts(0, [1, 10**6], [0, 0], 0), "exponents")
