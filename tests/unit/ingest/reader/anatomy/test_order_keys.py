"""Keys are in the order of numbers, and give the numbers back."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ingest.reader.anatomy.order_keys import keys_of, value_of, widened

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


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        ("f2", "float32"),
        (ml_dtypes.bfloat16, "float32"),
        (ml_dtypes.float8_e4m3fn, "float32"),
        ("f4", "float32"),
        ("f8", "float64"),
        ("?", "int64"),
        ("i1", "int64"),
        ("u4", "int64"),
        ("u8", "uint64"),
        (ml_dtypes.int4, "int64"),
    ],
)
def test_a_type_becomes_one_that_holds_its_numbers(dtype: Any, wide: str) -> None:
    values = np.array([0, 1]).astype(dtype)
    assert widened(values).dtype.name == wide
    assert widened(values).tolist() == [0, 1]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2", "i8", "u8"])
def test_big_endian_numbers_keep_their_values(dtype: str) -> None:
    limits = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    values = np.array([limits.min, 1, limits.max], dtype)
    assert widened(values.astype(f">{dtype}")).tobytes() == widened(values).tobytes()


def test_a_finite_number_of_more_bits_stays_finite() -> None:
    values = np.array([1e300, -1e-300, 0, np.nan, np.inf, -np.inf], np.longdouble)
    values[2] = np.finfo(np.longdouble).max
    wide = widened(values)
    assert wide.dtype == np.float64
    assert wide[:3].tolist() == [1e300, -1e-300, np.finfo(np.float64).max]
    np.testing.assert_array_equal(np.isfinite(wide), np.isfinite(values))
