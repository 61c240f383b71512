"""Statistics against exact rational arithmetic, for values of every size and kind."""

import itertools
import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workers.arrays.compiled import kernel_loops
from workers.arrays.dtypes import FLOAT8, from_name, unpack
from workers.arrays.statistics import (
    BLOCK,
    COUNT_FIELDS,
    RunningStatistics,
    Statistics,
    has_statistics,
    rows_of,
    summarise,
    summarise_many,
)

Array = np.ndarray[Any, Any]
_CONTEXT = Context(prec=80, Emin=-999999, Emax=999999)
BIGGEST = np.finfo(np.float64).max
SMALLEST = 5e-324


def sqrt(value: Fraction) -> float:
    """Return a root that neither over- nor underflows on the way."""
    return float(_CONTEXT.sqrt(_CONTEXT.divide(Decimal(value.numerator), Decimal(value.denominator))))


def expected(values: Array) -> Statistics:
    """Return the statistics of a real array, calculated exactly and rounded once."""
    # What each element is in float64, since that is what the statistics are about.
    numbers = [float(value) for value in values.astype(np.float64)]
    finite = [Fraction(value) for value in numbers if math.isfinite(value)]
    n = len(finite)
    mean = sum(finite, Fraction(0)) / n if n else None
    squares = sum((value * value for value in finite), Fraction(0))
    return Statistics(
        count=len(numbers),
        nan_count=sum(map(math.isnan, numbers)),
        pos_inf_count=numbers.count(math.inf),
        neg_inf_count=numbers.count(-math.inf),
        zero_count=numbers.count(0),
        negative_count=sum(value < 0 for value in numbers),
        positive_count=sum(value > 0 for value in numbers),
        min=float(min(finite)) if n else math.nan,
        max=float(max(finite)) if n else math.nan,
        mean=float(mean) if mean is not None else math.nan,
        std=sqrt(squares / n - mean * mean) if mean is not None else math.nan,
        l2_norm=sqrt(squares) if n else math.nan,
    )


def assert_close(found: Statistics, wanted: Statistics) -> None:
    exact = (*COUNT_FIELDS, "min", "max")
    for field in exact:
        assert getattr(found, field) == pytest.approx(getattr(wanted, field), rel=0, abs=0, nan_ok=True), (
            field
        )
    if math.isnan(wanted.mean):
        assert math.isnan(found.mean)
        assert math.isnan(found.std)
        assert math.isnan(found.l2_norm)
        return
    # A sum of floats is as good as its largest term allows, and no float is nearer to 0 than the smallest.
    near = max(max(abs(wanted.min), abs(wanted.max)) * 1e-14, SMALLEST)
    assert found.mean == pytest.approx(wanted.mean, rel=1e-12, abs=near)
    assert found.std == pytest.approx(wanted.std, rel=1e-9, abs=near)
    assert found.l2_norm == pytest.approx(wanted.l2_norm, rel=1e-12, abs=0)


# At the very limit, the norm of one element may be rounded to infinity.
floats = st.lists(st.floats(-1e308, 1e308) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=30)


@given(floats)
@example([1e300])
@example([1e300, -1e300])
@example([BIGGEST, -BIGGEST, BIGGEST, -BIGGEST])
@example([BIGGEST / 2] * 3)
@example([1e200] * 5)
@example([1e-200, 3e-200])
@example([5e-324, 5e-324])
@example([0.0, 5e-324])
@example([5e-324, 1.0])
@example([1e-200, 1e300])
@example([1e300, 1e-200, math.nan, math.inf])
@example([math.nan] * 3)
@example([math.inf, -math.inf])
@example([-0.0, 0.0])
@example([])
def test_float64_of_any_size(numbers: list[float]) -> None:
    """No infinity, zero or NaN appears where the true result is a finite number."""
    wanted = expected(np.array(numbers, np.float64))
    if math.isinf(wanted.l2_norm):
        return
    assert_close(summarise(np.array(numbers, np.float64)), wanted)


@given(
    st.binary(min_size=0, max_size=64),
    st.sampled_from(["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "bfloat16"]),
)
def test_any_bits_of_any_float_type(raw: bytes, name: str) -> None:
    """Signalling NaNs, subnormals and both byte orders: no warning, exact counts."""
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    values = np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype)
    with np.errstate(all="ignore"):
        wanted = expected(values)
    if math.isinf(wanted.l2_norm):
        return
    assert_close(summarise(values), wanted)


@given(
    st.data(),
    st.sampled_from(
        [f"{order}{sign}{size}" for order, sign, size in itertools.product("<>", "iu", (1, 2, 4, 8))]
    ),
)
def test_integers_to_their_limits(data: st.DataObject, name: str) -> None:
    limits = np.iinfo(name)
    numbers = data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), max_size=20))
    values = np.array(numbers, name)
    assert_close(summarise(values), expected(values))


def test_any_byte_but_zero_is_true() -> None:
    found = summarise(np.array([0, 1, 2, 255], np.uint8).view(np.bool_))
    assert (found.zero_count, found.positive_count, found.max) == (1, 3, 1)


CODED = [*FLOAT8, "int8", "uint8", "int4", "uint4", "int2", "uint2", "float4_e2m1fn"]


@pytest.mark.parametrize("name", CODED)
def test_every_code_of_a_byte(name: str) -> None:
    """Each alone, and all at once."""
    codes = np.arange(256, dtype=np.uint8).view(from_name(name).values)
    for code in range(256):
        assert_close(summarise(codes[code : code + 1]), expected(codes[code : code + 1]))
    assert_close(summarise(codes), expected(codes))


@given(st.sampled_from(CODED), st.binary(max_size=64), st.integers(0, 64))
def test_any_codes_in_pieces(name: str, raw: bytes, cut: int) -> None:
    values = np.frombuffer(raw, from_name(name).values)
    running = RunningStatistics()
    running.update(values[:cut])
    running.update(values[cut:])
    assert_close(running.result(), expected(values))


@given(
    st.sampled_from(["int4", "uint4", "int2", "uint2", "uint1", "float4_e2m1fn"]),
    st.binary(max_size=64),
    st.data(),
)
def test_packed_elements_are_counted_without_the_padding(name: str, raw: bytes, data: st.DataObject) -> None:
    element = from_name(name)
    size = data.draw(st.integers(0, len(raw) * 8 // element.bits))
    values = unpack(raw, element, size)
    assert_close(summarise(values), expected(values))


@given(st.binary(max_size=64))
def test_complex32_counts_as_complex64_does(raw: bytes) -> None:
    raw = raw[: len(raw) // 4 * 4]
    found = summarise(unpack(raw, from_name("complex32"), 64))
    wide = np.frombuffer(raw, "<f2").astype(np.float32).view(np.complex64)
    assert found.as_row() == pytest.approx(summarise(wide).as_row(), nan_ok=True)
    assert found.count == wide.size


@pytest.mark.parametrize(("origin", "spread"), [(1e15, 1.0), (-3e12, 1e-3), (1.0, 1e-15), (7e200, 1e186)])
def test_what_differs_in_its_last_digits_only_has_an_exact_deviation(origin: float, spread: float) -> None:
    """Also over many blocks, the means of which differ less than they can be rounded."""
    noise = np.random.default_rng(2).normal(size=5 * kernel_loops.BLOCK + 3)
    found, wanted = summarise(origin + spread * noise), expected(origin + spread * noise)
    assert found.std == pytest.approx(wanted.std, rel=1e-12)
    assert found.mean == pytest.approx(wanted.mean, rel=1e-15)


def test_long_arrays_agree_with_extended_precision() -> None:
    values = np.random.default_rng(1).standard_cauchy(3 * BLOCK + 17)
    wide = values.astype(np.longdouble)
    found = summarise(values)
    assert found.mean == pytest.approx(math.fsum(values) / values.size, rel=1e-10)
    assert found.std == pytest.approx(float(wide.std()), rel=1e-12)
    assert found.l2_norm == pytest.approx(float(np.sqrt((wide * wide).sum())), rel=1e-12)


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_pieces_give_the_same_as_the_whole(numbers: list[float], cuts: list[int]) -> None:
    """A tensor larger than a buffer arrives in pieces."""
    values = np.array(numbers, np.float32)
    running = RunningStatistics()
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    for begin, end in itertools.pairwise(edges):
        running.update(values[begin:end])
    with np.errstate(invalid="ignore"):
        wanted = expected(values)
    assert_close(running.result(), wanted)


def test_empty_tensor_counts_nothing() -> None:
    found = summarise(np.zeros(0, np.float32))
    assert [getattr(found, field) for field in COUNT_FIELDS] == [0] * len(COUNT_FIELDS)
    assert math.isnan(found.min)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_elements_count_by_their_parts(dtype: type[np.complexfloating[Any, Any]]) -> None:
    nan, inf = math.nan, math.inf
    values = np.array(
        [3 + 4j, 0, complex(nan, 1), complex(inf, 1), complex(inf, nan), complex(1, -inf)], dtype
    )
    found = summarise(values)
    assert (found.count, found.nan_count, found.pos_inf_count, found.zero_count) == (6, 2, 2, 1)
    assert found.l2_norm == 5
    assert math.isnan(found.mean)


def test_a_finite_complex_element_is_not_infinite_although_its_magnitude_is() -> None:
    largest = np.finfo(np.float64).max
    found = summarise(np.array([complex(largest, -largest), 1]))
    assert (found.count, found.pos_inf_count, found.positive_count, found.l2_norm) == (2, 0, 0, largest)


@pytest.mark.parametrize(
    ("dtype", "known"),
    [
        ("<f4", True),
        ("|b1", True),
        (">c8", True),
        (ml_dtypes.bfloat16, True),
        ("<U3", False),
        ("V4", False),
        ("<M8[ns]", False),
        ([("a", "<f4")], False),
    ],
)
def test_only_numbers_have_statistics(dtype: Any, known: bool) -> None:
    assert has_statistics(np.dtype(dtype)) is known


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *((name, True) for name in CODED),
        ("uint1", True),
        ("complex32", True),
        ("bool", True),
        ("float64", True),
        ("hifloat8", False),
        ("hifloat4_scale", False),
        ("float6_e3m2", False),
        ("float4_e1m2", False),
        ("<U3", False),
        ("|V1", False),
    ],
)
def test_opaque_elements_have_no_statistics(name: str, known: bool) -> None:
    assert has_statistics(from_name(name)) is known


def test_row_is_the_result_in_order() -> None:
    running = RunningStatistics()
    running.update(np.array([1.0, math.nan, -2.0]))
    assert running.row() == running.result().as_row()
    assert Statistics(*running.row()) == running.result()


@given(
    st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    st.lists(st.binary(min_size=8, max_size=200), min_size=1, max_size=6),
)
def test_many_tensors_at_once_have_the_statistics_of_each(name: str, payloads: list[bytes]) -> None:
    dtype = from_name(name).to_numpy()
    tensors = [np.frombuffer(raw[: len(raw) // 8 * 8], dtype) for raw in payloads]
    states, bins, counts = summarise_many(np.concatenate(tensors), [tensor.size for tensor in tensors])
    rows = rows_of(states)
    histograms = np.split(bins, np.cumsum(counts)[:-1])
    for tensor, row, histogram in zip(tensors, rows, histograms, strict=True):
        running = RunningStatistics(with_histogram=True)
        running.update(tensor)
        assert row.tobytes() == np.array(running.row()).tobytes()
        assert np.array_equal(histogram, running.histogram_rows())
