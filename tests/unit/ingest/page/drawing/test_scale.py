"""Levels of values."""

import numpy as np

from ingest.page.drawing.scale import LEVELS, ONLY_LEVEL, Scale, css_of


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
