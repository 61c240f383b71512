"""The answers of a table are those of each histogram by itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.compiled.kernel_loops import BINS, LOWEST_EXPONENT
from workers.arrays.dtypes import format_named
from workers.arrays.histogram import Bounds, Histogram, HistogramTable, losses

_PLACES = st.integers(0, BINS - 2)
_BINS = st.dictionaries(_PLACES, st.integers(1, 50), max_size=5)
SHARES = [0, 0.01, 0.25, 0.5, 0.95, 0.999, 1]
FORMATS = ["float16", "bfloat16", "e4m3", "e5m2", "mxfp8", "nvfp4", "e8m3", "e10m3"]


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    """A histogram and ends that fit it; the last bin may hold numbers beyond float32."""
    positive, negative, zeros = draw(_BINS), draw(_BINS), draw(st.integers(0, 3))
    fraction = draw(st.sampled_from([0.5, 0.75, 1.0]))

    def magnitude(place: int) -> float:
        return (
            float(np.ldexp(2 * fraction, place + LOWEST_EXPONENT))
            if fraction > 0.5
            else float(np.ldexp(1.0, place + LOWEST_EXPONENT) * (1 + 2**-20))
        )

    numbers = [magnitude(place) for place in positive] + [-magnitude(place) for place in negative]
    numbers += [0.0] * bool(zeros)
    dense = []
    for bins in (positive, negative):
        counts = np.zeros(BINS - 1, np.int64)
        counts[list(bins)] = list(bins.values())
        dense.append(counts)
    ends = (min(numbers), max(numbers)) if numbers else (np.nan, np.nan)
    return Histogram(dense[0], dense[1], zeros, *ends)


def table_of(members: list[Histogram]) -> HistogramTable:
    tensor, bins = [], []
    for number, member in enumerate(members):
        for place in np.flatnonzero(member.magnitudes).tolist():
            tensor.append(number)
            bins.append((place + LOWEST_EXPONENT, member.positive[place], member.negative[place]))
    return HistogramTable.of_entries(
        np.array(tensor, np.int64),
        np.array(bins, np.int64).reshape(-1, 3),
        np.array([member.zeros for member in members], np.int64),
        np.array([member.low for member in members], np.float64),
        np.array([member.high for member in members], np.float64),
    )


def assert_equal(column: tuple[np.ndarray, np.ndarray], expected: list[Bounds]) -> None:
    np.testing.assert_array_equal(column[0], [bounds.low for bounds in expected])
    np.testing.assert_array_equal(column[1], [bounds.high for bounds in expected])


@settings(max_examples=50, deadline=None)
@given(st.lists(histograms(), max_size=4))
def test_answers_are_those_of_each_histogram(members: list[Histogram]) -> None:
    table = table_of(members)
    for share in SHARES:
        for magnitude in (False, True):
            expected = [member.quantile(share, magnitude=magnitude) for member in members]
            assert_equal(table.quantile(share, magnitude=magnitude), expected)
    for name in FORMATS:
        target = format_named(name)
        lost = [losses(member, target) for member in members]
        assert_equal(table.overflow(target), [loss.overflow for loss in lost])
        assert_equal(table.underflow(target), [loss.underflow for loss in lost])


@pytest.mark.parametrize("number", [1, 3])
def test_tensors_of_nothing_have_no_quantiles(number: int) -> None:
    nothing = Histogram(np.zeros(BINS - 1, np.int64), np.zeros(BINS - 1, np.int64), 0, np.nan, np.nan)
    table = table_of([nothing] * number)
    assert np.isnan(table.quantile(0.5).low).all()
    assert table.largest.tolist() == [0] * number
