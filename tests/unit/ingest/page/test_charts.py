"""Charts as SVG."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest

from ingest.page.charts import (
    ExponentCounts,
    Series,
    bars,
    exponents_picture,
    picture,
    series_by_rank,
    series_picture,
    tag,
)
from workers.arrays.sketches.histogram import Histogram


def test_text_and_attributes_are_escaped() -> None:
    assert tag("text", "<b>&", class_='"x"', data_name="'<") == (
        '<text class="&#34;x&#34;" data-name="&#39;&lt;">&lt;b&gt;&amp;</text>'
    )


def test_a_picture_says_what_it_is() -> None:
    drawn = picture(10.0, 5.25, [tag("rect", x=1)], "two <bars>")
    assert drawn.startswith('<svg viewBox="0 0 10 5.25"')
    assert "<title>two &lt;bars&gt;</title>" in drawn
    assert 'role="img"' in drawn


def heights(drawn: str) -> list[float]:
    return [float(height) for height in re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)]


def test_a_bar_is_as_high_as_its_count_and_none_has_no_bar() -> None:
    drawn = bars(["a", "b", "c"], [10, 0, 20], "values")
    first, last = heights(drawn)
    assert last == pytest.approx(2 * first)
    assert "<title>c: 20</title>" in drawn
    assert "logarithmic" not in drawn


def test_a_single_element_is_seen_among_millions() -> None:
    drawn = bars(["a", "b"], [1, 10_000_000], "values")
    assert "elements, logarithmic" in drawn
    assert min(heights(drawn)) >= 2


def test_nothing_counted_is_a_picture_without_bars() -> None:
    drawn = bars(["a", "b"], [0, 0], "values", ticks=("from", "to"))
    assert heights(drawn) == []
    assert ">from</text>" in drawn


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


@pytest.mark.parametrize(("steps", "width"), [(1, 322), (3, 322), (6, 622), (500, 1082)])
def test_few_steps_make_a_picture_that_fits_a_phone(steps: int, width: int) -> None:
    line = Series("", list(range(steps)), [1.0] * steps, [False] * steps)
    assert f'width="{width}"' in series_picture([line], "all")


@pytest.mark.parametrize(("steps", "marked"), [(200, 200), (201, 0)])
def test_all_points_of_a_line_are_marked_or_none(steps: int, marked: int) -> None:
    line = Series("", list(range(steps)), [1.0] * steps, [False] * steps)
    assert series_picture([line], "all").count("<circle") == marked


def test_there_is_a_line_for_each_rank() -> None:
    frame = pd.DataFrame(
        {"rank": [0, 1, 0], "step": [1, 1, 2], "value": [0.5, 2.0, 1.5], "non_finite": [0, 3, 0]}
    )
    assert series_by_rank(frame, "a ") == [
        Series("a rank 0", [1, 2], [0.5, 1.5], [False, False]),
        Series("a rank 1", [1], [2.0], [True]),
    ]


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


@pytest.mark.parametrize("values", [[], [np.nan, 0], [3]], ids=["empty", "nothing but zero", "one"])
def test_what_says_nothing_has_no_picture(values: list[float]) -> None:
    assert ExponentCounts.of_values(np.array(values, float)) is None


def test_positive_elements_stand_above_the_axis_and_negative_ones_below() -> None:
    drawn = exponents_picture(ExponentCounts(-1, [4, 0], [0, 2], 0), "exponents")
    bars = re.findall(r"<rect .*?</rect>", drawn)
    (above, below) = ({name: _attribute(bar, name) for name in ("y", "height")} for bar in bars)
    assert above["y"] + above["height"] == below["y"]
    assert ["+2⁻¹: 4" in bars[0], "\u22122⁰: 2" in bars[1]] == [True, True]


def _attribute(element: str, name: str) -> float:
    known = re.search(rf' {name}="([\d.]+)"', element)
    assert known is not None
    return float(known[1])


def test_a_single_exponent_stands_among_its_neighbours() -> None:
    drawn = exponents_picture(ExponentCounts(3, [0], [7], 0), "exponents")
    assert len(re.findall("<rect", drawn)) == 1
    assert ["2⁻²<" in drawn, "2⁹<" in drawn] == [True, True]


def test_only_positive_elements_need_no_room_below() -> None:
    one, both = (exponents_picture(ExponentCounts(0, [4, 1], [0, n], 0), "exponents") for n in (0, 1))
    assert _attribute(one, "height") < _attribute(both, "height")
    assert "negative" not in one


def test_many_exponents_share_a_bar_and_a_single_element_is_seen() -> None:
    counts = [1] + [10**6] * 199
    drawn = exponents_picture(ExponentCounts(-100, counts, [0] * 200, 0), "exponents")
    assert "elements, logarithmic" not in drawn  # five exponents share a bar: none is small
    assert len(re.findall("<rect", drawn)) == 40
    assert "2⁻¹⁰⁰ to 2⁻⁹⁶" in drawn
    assert "logarithmic" in exponents_picture(ExponentCounts(0, [1, 10**6], [0, 0], 0), "exponents")
