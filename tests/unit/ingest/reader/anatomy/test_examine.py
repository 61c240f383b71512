"""Percentiles, histograms and places of what is not finite, against numpy on the whole tensor."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ingest.reader.anatomy import Anatomy, examine
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import summarise

PERCENTS = (0, 1, 12.5, 50, 99, 100)
TYPES = ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "u8", "?", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def anatomy(values: np.ndarray[Any, Any], piece: int = 7, order: str = "C", **options: Any) -> Anatomy:
    """Examine an array in small pieces."""
    flat = values.reshape(-1, order="F" if order == "F" else "C")

    def pieces() -> Iterator[np.ndarray[Any, Any]]:
        return (flat[begin : begin + piece] for begin in range(0, flat.size, piece))

    return examine(pieces, values.shape, order=order, **{"percents": PERCENTS, **options})


@given(
    arrays.arrays(
        st.sampled_from(["f2", "f4", "f8", "i2", "i8", "u8"]),
        st.integers(1, 40),
        elements={"allow_nan": True},
    )
)
def test_percentiles_are_those_of_numpy(values: np.ndarray[Any, Any]) -> None:
    finite = values[np.isfinite(values)]
    answer = anatomy(values).percentiles
    if finite.size == 0:
        assert answer == {}
        return
    assert (answer[0], answer[100]) == (float(finite.min()), float(finite.max()))
    in_order = np.sort(finite)
    for part in PERCENTS:
        place = part / 100 * (len(in_order) - 1)
        low, high = float(in_order[int(np.floor(place))]), float(in_order[int(np.ceil(place))])
        share = place % 1
        expected = low if low == high else low * (1 - share) + high * share
        assert answer[part] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_examined(dtype: Any) -> None:
    values = np.arange(100).reshape(10, 10).astype(dtype)
    answer = anatomy(values)
    assert answer.elements == sum(answer.counts) == 100
    wide = values.astype(np.float64)
    assert answer.percentiles[50] == np.percentile(wide, 50)
    assert (answer.edges[0], answer.edges[-1]) == (wide.min(), wide.max())


def test_a_histogram_is_that_of_numpy() -> None:
    values = np.random.default_rng(1).normal(size=5000).astype(np.float32)
    counts, edges = np.histogram(values.astype(np.float64), 20)
    answer = anatomy(values, piece=999)
    assert answer.counts == tuple(counts.tolist())
    assert answer.edges == pytest.approx(edges.tolist(), rel=1e-9, abs=1e-12)


def test_the_histogram_of_denormal_numbers_is_that_of_numpy() -> None:
    values = np.array([1, 2, 3, 40]) * np.finfo(np.float64).smallest_subnormal
    answer = anatomy(values)
    counts, edges = np.histogram(values, 20)
    assert (answer.edges, answer.counts) == (tuple(edges.tolist()), tuple(counts.tolist()))


def test_numbers_at_the_limits_of_float64_have_a_histogram() -> None:
    values = np.array([-1.7e308, 0, 1.7e308])
    assert sum(anatomy(values, bins=2).counts) == 3


def test_the_edges_of_a_histogram_of_the_least_numbers_are_its_ends() -> None:
    answer = anatomy(np.array([-5e-324, 5e-324, 1.5e-323]), bins=4)
    assert (answer.edges[0], answer.edges[-1]) == (-5e-324, 1.5e-323)
    assert answer.counts == (1, 0, 1, 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_places_of_what_is_not_finite(order: str) -> None:
    values = np.ones((4, 3, 5), np.float32)
    values[2, 1, :] = np.nan
    values[3, 0, 4] = -np.inf
    answer = anatomy(values, order=order)
    assert (answer.nan, answer.pos_inf, answer.neg_inf) == (5, 0, 1)
    assert {element.index for element in answer.first} == {(3, 0, 4), *((2, 1, k) for k in range(5))}
    rows, channels, _ = answer.axes
    assert (rows.affected, rows.worst) == (2, ((2, 5), (3, 1)))
    assert channels.worst == ((1, 5), (0, 1))


def test_complex_numbers_have_places_only() -> None:
    answer = anatomy(np.array([1 + 1j, complex(0, np.nan), complex(np.inf, 1)]))
    assert (answer.nan, answer.pos_inf, answer.percentiles, answer.counts) == (1, 1, {}, ())


@pytest.mark.parametrize("real", [1.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("imaginary", [1.0, np.inf, -np.inf, np.nan])
def test_complex_numbers_count_as_in_the_statistics(real: float, imaginary: float) -> None:
    """Such as inf - inf j, whose parts have no sum: `show` would contradict itself."""
    values = np.array([complex(real, imaginary)])
    halves = np.array([real, imaginary], np.float16).view(from_name("complex32").to_numpy())
    for array in (values, halves):
        answer, statistics = anatomy(array), summarise(array)
        assert (answer.nan, answer.pos_inf, answer.neg_inf) == (
            statistics.nan_count,
            statistics.pos_inf_count,
            statistics.neg_inf_count,
        )


@pytest.mark.parametrize("dtype", ["U3", "S3", "V5", "M8[D]", "m8[s]", "i4,f8"])
def test_what_is_not_a_number_is_only_counted(dtype: str) -> None:
    answer = anatomy(np.zeros(7, dtype))
    assert (answer.elements, answer.nan, answer.percentiles, answer.counts) == (7, 0, {}, ())


def test_a_scalar_and_an_empty_tensor() -> None:
    assert anatomy(np.array(np.nan)).first[0].index == ()
    empty = anatomy(np.ones((0, 3)))
    assert (empty.elements, empty.percentiles, empty.axes) == (0, {}, ())


def test_memory_does_not_grow_with_the_tensor() -> None:
    """64 MB pass by in pieces of 1 MB; the limit is that of the documentation."""
    piece = np.random.default_rng(2).normal(size=1 << 18).astype(np.float32)
    tracemalloc.start()
    try:
        examine(
            lambda: (piece for _ in range(64)), (64, 1 << 18), percents=(0, 1, 5, 25, 50, 75, 95, 99, 100)
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000
