"""What is in a tensor: as numpy says it, in bounded memory."""

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ingest.reader.anatomy import Anatomy, examine, keys_of, parse_index, percentiles, value_of, widened
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import summarise
from workers.errors import UsageError

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


VALUES = np.arange(120).reshape(4, 5, 6)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("1", 1),
        ("-1", -1),
        ("1:3,:", np.s_[1:3, :]),
        ("[0, 1, 2]", np.s_[0, 1, 2]),
        ("...,0", np.s_[..., 0]),
        ("::-1, ::2", np.s_[::-1, ::2]),
        (":100", np.s_[:100]),
    ],
)
def test_an_index_is_that_of_numpy(text: str, index: Any) -> None:
    assert np.array_equal(VALUES[parse_index(text, VALUES.shape)], VALUES[index])


@pytest.mark.parametrize("text", ["a", "1:2:0", "1,2,3,4", "4", "...,6", "...,...", "1:2:3:4", "1.5"])
def test_what_is_wrong_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_index(text, VALUES.shape)
    assert caught.value.hint


Values = np.ndarray[Any, Any]


@given(
    arrays.arrays(
        st.sampled_from(["f4", "f8", "i8", "u8"]),
        st.integers(1, 30),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
def test_keys_sort_as_numbers_do_and_name_them(values: Values) -> None:
    keys = keys_of(values)
    assert values[np.argsort(keys, kind="stable")].tolist() == np.sort(values).tolist()
    assert [value_of(int(key), values.dtype) for key in keys] == [float(value) for value in values]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_subnormal_numbers_and_both_zeros_have_their_place(dtype: str) -> None:
    tiny = np.nextafter(np.array(0, dtype), np.array(1, dtype))
    values = np.array([np.finfo(dtype).min, -1, -tiny, -0.0, 0.0, tiny, 1, np.finfo(dtype).max], dtype)
    keys = keys_of(values).tolist()
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2", "i8", "u8"])
def test_big_endian_numbers_keep_their_values(dtype: str) -> None:
    limits = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    values = np.array([limits.min, 1, limits.max], dtype)
    assert widened(values.astype(f">{dtype}")).tobytes() == widened(values).tobytes()


class Reads:
    """Yields values in pieces, and counts how often they were read."""

    def __init__(self, values: Values, piece: int) -> None:
        self.values, self.piece, self.passes = values, piece, 0

    def __call__(self) -> Iterable[Values]:
        self.passes += 1
        return (self.values[at : at + self.piece] for at in range(0, len(self.values), self.piece))


@pytest.mark.parametrize(("dtype", "passes"), [("f4", 2), ("f8", 4), ("i8", 4), ("u8", 4)])
@pytest.mark.parametrize("piece", [1, 64, 1000])
def test_a_pass_for_each_16_bits_finds_what_numpy_finds(dtype: str, passes: int, piece: int) -> None:
    values = (np.random.default_rng(1).normal(size=300) * 1e6).astype("i8").astype(dtype)
    read = Reads(values, piece)
    answer = percentiles(read, len(values), values.dtype, [0, 25, 50, 99.9, 100])
    assert answer == pytest.approx(
        {percent: float(np.percentile(values.astype("f8"), percent)) for percent in answer}, rel=1e-12
    )
    assert read.passes == passes
