"""Cells in colours."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from ingest.page.cells import (
    LEVELS,
    ONLY_LEVEL,
    Scale,
    css_of,
    legend,
    matrix_picture,
    ribbon_picture,
    timeline_picture,
)
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix


def levels(values: list[float], *, is_count: bool = False) -> list[int]:
    array = np.array(values)
    scale = Scale.of(array, is_count=is_count)
    assert scale is not None
    return [int(level) for level in scale.levels(array)]


def test_zero_some_and_unknown_differ() -> None:
    assert levels([0, 1, 1000, np.nan], is_count=True) == [0, 1, LEVELS, -1]


def test_counts_and_values_far_apart_are_logarithmic() -> None:
    assert levels([1, 10, 100], is_count=True)[1] == 4
    assert levels([1, 10, 100])[1] == 1


def test_zero_among_negative_values_is_a_value() -> None:
    assert levels([-1, 0, 1]) == [1, 4, LEVELS]


def test_equal_values_and_the_largest_numbers() -> None:
    assert levels([3, 3]) == [ONLY_LEVEL, ONLY_LEVEL]
    assert levels([-1.7e308, 1.7e308, np.inf]) == [1, LEVELS, LEVELS]


def test_the_least_numbers_differ() -> None:
    assert levels([-5e-324, 5e-324]) == [1, LEVELS]
    scale = Scale.of(np.array([-5e-324, 5e-324]), is_count=False)
    assert scale is not None
    assert (scale.limits()[0], scale.limits()[-1]) == (-5e-324, 5e-324)


def test_the_legend_names_the_greatest_number_of_each_colour_in_few_digits() -> None:
    scale = Scale.of(np.array([1 / 3, 1]), is_count=False)
    assert scale is not None
    legend = scale.legend(is_count=False)
    assert [css for css, _ in legend] == [css_of(level) for level in range(1, LEVELS + 1)]
    assert [legend[0][1], legend[1][1], legend[-1][1]] == ["from 0.333", "to 0.524", "to 1"]


def test_nothing_known_has_no_scale() -> None:
    assert Scale.of(np.array([np.nan, 0]), is_count=True) is None


def made(values: list[list[float]], state: list[list[int]] | None = None, *, is_count: bool = True) -> Matrix:
    array = np.array(values, float)
    states = np.full(array.shape, KNOWN) if state is None else np.array(state)
    return Matrix(
        "made",
        tuple((rank, rank) for rank in range(array.shape[0])),
        tuple((10 + step, 10 + step) for step in range(array.shape[1])),
        array,
        states,
        (states == MISSING).astype(np.int64),
        array > 5,
        is_count=is_count,
    )


def cells(drawn: str) -> dict[str, int]:
    """Return by colour how many cells have it."""
    return {css: path.count("M") for path, css in re.findall(r'<path d="([^"]*)" class="(\w+)"', drawn)}


def test_every_cell_has_one_colour_and_marks_come_above() -> None:
    matrix = made([[0, 1, 9], [np.nan, 0, 0]], [[KNOWN, PARTIAL, DAMAGED], [MISSING, KNOWN, KNOWN]])
    counted = cells(matrix_picture(matrix, "a <label>"))
    marks = {"partial": counted.pop("partial"), "damaged": counted.pop("damaged")}
    assert marks == {"partial": 1, "damaged": 1}
    assert (counted["missing"], counted["zero"], sum(counted.values())) == (1, 3, 6)


def test_statistics_have_a_notch_where_they_are_not_finite_and_counts_have_none() -> None:
    assert cells(matrix_picture(made([[1, 9]], is_count=False), "x"))["notch"] == 1
    assert "notch" not in cells(matrix_picture(made([[1, 9]]), "x"))


def test_the_script_is_told_where_cells_are() -> None:
    drawn = matrix_picture(made([[1, 2, 3], [4, 5, 6]]), "a <label>")
    assert 'data-rows="2"' in drawn
    assert 'data-columns="3"' in drawn
    assert "<title>a &lt;label&gt;</title>" in drawn
    assert ">10</text>" in drawn


@pytest.mark.parametrize("shape", [(1, 1), (88, 240)])
def test_numbers_of_ranks_and_steps_do_not_crowd(shape: tuple[int, int]) -> None:
    drawn = matrix_picture(made(np.ones(shape).tolist()), "x")
    assert 1 <= drawn.count('class="tick mid"') <= 24
    assert 1 <= drawn.count('class="tick end"') <= 24


def test_the_legend_has_what_the_picture_has() -> None:
    matrix = made([[0, 1, 1000], [np.nan, 0, 0]], [[KNOWN, PARTIAL, DAMAGED], [MISSING, KNOWN, KNOWN]])
    words = dict(legend(matrix))
    assert words["zero"] == "0"
    assert words["lv1"] == "from 1"
    assert {"partial", "damaged", "missing"} <= words.keys()
    assert dict(legend(made([[7.0, 7.0]]))) == {css: "7" for css, _ in legend(made([[7.0, 7.0]]))}
    assert legend(made([[np.nan, np.nan]], [[KNOWN, MISSING]])) == [
        ("unknown", "not known"),
        ("missing", "not committed"),
    ]
    assert [css for css, _ in legend(made([[np.nan]], [[DAMAGED]]))] == ["damaged"]


def test_operators_have_colours_by_level_and_a_mark_if_they_are_bad() -> None:
    drawn = ribbon_picture([-1, 0, 3, 3], [False, False, True, False], "operators")
    assert set(re.findall(r'<path[^>]* class="(\w+)"', drawn)) == {"unknown", "zero", "lv3", "mark"}
    assert 'data-total="4"' in drawn


def test_many_operators_share_a_stripe_and_the_worst_is_seen() -> None:
    levels = [0] * 5000
    levels[1234] = 7
    bad = [level == 7 for level in levels]
    drawn = ribbon_picture(levels, bad, "operators")
    paths = dict(re.findall(r'<path d="([^"]*)" class="(\w+)"', drawn))
    count = {css: path.count("M") for path, css in paths.items()}
    assert count == {"zero": 1079, "lv7": 1, "mark": 1}


def test_a_step_without_operators_is_an_empty_picture() -> None:
    drawn = ribbon_picture([], [], "operators")
    assert "<path" not in drawn
    assert 'data-total="0"' in drawn


def boxes(drawn: str) -> list[str]:
    return re.findall(r'<rect[^>]* class="(\w+)"', drawn)


def test_affected_steps_are_marked() -> None:
    assert boxes(timeline_picture([1, 2, 5], {2, 99}, "steps")) == ["zero", "mark", "zero"]
    assert boxes(timeline_picture([], {2}, "steps")) == []


def test_one_affected_step_among_thousands_is_seen() -> None:
    drawn = timeline_picture(range(10_000), {7_777}, "steps")
    assert len(boxes(drawn)) == 180
    assert boxes(drawn).count("mark") == 1


@pytest.mark.parametrize("count", [1, 10, 100, 1000])
def test_numbers_of_steps_do_not_overlap(count: int) -> None:
    drawn = timeline_picture(range(count), frozenset(), "steps")
    places = [float(x) for x in re.findall(r'<text x="([\d.]+)"', drawn)]
    assert places
    assert places[0] >= 14
    assert all(after - before >= 37 for before, after in itertools.pairwise(places))


def test_the_script_is_told_where_boxes_are() -> None:
    drawn = timeline_picture(range(10_000), frozenset(), "steps")
    left, wide, columns = (
        float(re.findall(rf'data-{name}="([\d.]+)"', drawn)[0]) for name in ("left", "cell-width", "columns")
    )
    assert float(re.findall(r'<svg[^>]* width="([\d.]+)"', drawn)[0]) == left + wide * columns
