"""Signs and binary exponents as a picture."""

import re

import numpy as np
import pytest

from ingest.page.drawing.exponents import ExponentCounts, exponents_picture
from workers.arrays.sketches.histogram import Histogram


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
