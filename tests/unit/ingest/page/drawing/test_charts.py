"""Histograms and lines."""

import math
import re

import pandas as pd
import pytest

from ingest.page.drawing.charts import Series, bars, series_by_rank, series_picture


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
