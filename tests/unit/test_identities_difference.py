"""The shape of a difference: where it lies, and what turns one tensor into the other."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.identities.difference import shape_of_difference

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def tensor(shape: tuple[int, ...] = (48, 32), dtype: Any = np.float32) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def changed(change: Callable[[Array], Any], dtype: Any = np.float32) -> tuple[Array, Array]:
    a = tensor(dtype=dtype)
    b = a.copy()
    return a, b if (result := change(b)) is None else result.astype(dtype)


def scale_row(b: Array) -> None:
    b[5] *= 2


def garble(*places: Any) -> Callable[[Array], None]:
    def change(b: Array) -> None:
        for place in places:
            b[place] = np.random.default_rng(1).normal(size=b[place].shape)

    return change


def shuffle(b: Array) -> Array:
    return np.random.default_rng(2).permutation(b.reshape(-1)).reshape(b.shape)


@pytest.mark.parametrize(
    ("change", "where", "how", "axis", "value"),
    [
        (lambda b: b, "nowhere", "equal", None, None),
        (garble((3, 4)), "element", "other", None, None),
        (garble(7), "row", "other", 0, None),
        (garble((slice(None), 7)), "row", "other", 1, None),
        (garble(3, 17, 40), "rows", "other", 0, None),
        (garble((slice(16, 32), slice(0, 16))), "block", "other", None, None),
        (garble((slice(None), slice(None))), "everywhere", "other", None, None),
        (garble((np.arange(0, 48, 2), slice(None))), "scattered", "other", None, None),
        (garble((np.arange(0, 48, 5), np.arange(0, 30, 3))), "scattered", "other", None, None),
        (scale_row, "row", "factor", 0, 2.0),
        (lambda b: b * 4, "everywhere", "factor", None, 4.0),
        (lambda b: b / 3, "everywhere", "factor", None, 1 / 3),
        (lambda b: b + 1000, "everywhere", "offset", None, 1000.0),
        (lambda b: -b, "everywhere", "sign", None, None),
        (lambda b: b * 0, "everywhere", "zero", None, None),
        (lambda b: b * np.nan, "everywhere", "not finite", None, None),
        (lambda b: np.roll(b, 2, axis=0), "everywhere", "shift", 0, 2),
        (lambda b: np.concatenate([b[1:], b[:1] * 3]), "everywhere", "shift", 0, -1),
        (lambda b: np.roll(b, -3, axis=1), "everywhere", "shift", 1, -3),
        (lambda b: b[np.random.default_rng(3).permutation(48)], "everywhere", "permutation", 0, None),
        (shuffle, "everywhere", "permutation", None, None),
        (lambda b: np.nextafter(b, np.float32(9)), "everywhere", "rounding", None, None),
    ],
)
def test_each_change_has_its_shape(
    change: Callable[[Array], Any], where: str, how: str, axis: int | None, value: float | None
) -> None:
    difference = shape_of_difference(*changed(change))
    assert (difference.where, difference.how, difference.axis) == (where, how, axis)
    assert difference.value == (None if value is None else pytest.approx(value, rel=1e-5))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.int64])
@given(data=st.data())
def test_a_flipped_bit_is_found(dtype: Any, data: st.DataObject) -> None:
    a = (tensor() * 100).astype(dtype)
    bits = a.dtype.itemsize * 8
    bit, place = data.draw(st.integers(0, bits - 1)), data.draw(st.integers(0, a.size - 1))
    b = a.copy()
    b.view(f"u{a.dtype.itemsize}").reshape(-1)[place] ^= np.array(1 << bit, f"u{a.dtype.itemsize}")
    difference = shape_of_difference(a, b)
    assert (difference.where, difference.how, difference.value) == ("element", "bit", bit)
    assert str(difference).endswith(f": bit {bit}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_a_factor_is_told_within_the_rounding_of_the_type(dtype: Any) -> None:
    a = tensor(dtype=dtype)
    difference = shape_of_difference(a, (a.astype(np.float64) / 3).astype(dtype))
    assert difference.how == "factor"
    assert difference.value == pytest.approx(1 / 3, rel=1e-2)


def test_what_is_within_the_limit_does_not_count() -> None:
    a, b = changed(garble((3, 4)))
    b += np.float32(1e-6)
    assert not shape_of_difference(a, a + np.float32(1e-6), 1e-5)
    assert shape_of_difference(a, b, np.full(a.shape, 1e-5)).where == "element"


def test_scalars_nan_and_other_types_have_a_shape_too() -> None:
    nan = np.array([1.0, np.nan])
    assert not shape_of_difference(nan, nan.copy())
    assert shape_of_difference(np.array(True), np.array(False)).elements == 1
    assert shape_of_difference(np.array(2.5), np.array(3.5)).where == "element"
    assert shape_of_difference(np.array([1 + 2j, 3]), np.array([1 + 2j, 4])).where == "element"
    with pytest.raises(ValueError, match="float64"):
        shape_of_difference(nan, nan.astype(np.float32))
