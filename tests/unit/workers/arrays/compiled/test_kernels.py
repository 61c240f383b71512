"""The compiled loops of the statistics, by the state that they keep."""

import math
from typing import Any

import numpy as np
import pytest

from workers.arrays.compiled import kernel_loops, kernels

Array = np.ndarray[Any, Any]


def named(state: Array) -> dict[str, float]:
    return dict(zip(kernel_loops.PLACES, state.tolist(), strict=True))


@pytest.mark.parametrize("code", ["f4", "f8", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_elements_of_every_type_are_counted(code: str) -> None:
    state = kernels.new_state()
    kernels.accumulate(np.array([3, 0, 1], code), state)
    kernels.accumulate(np.array([5], code), state)
    found = named(state)
    assert (found["count"], found["zero_count"], found["positive_count"], found["finite"]) == (4, 1, 3, 4)
    assert (found["min"], found["max"]) == (0, 5)
    assert found["mean"] + found["origin"] == pytest.approx(2.25)
    assert found["m2"] == pytest.approx(4 * np.var([3, 0, 1, 5]))


def test_codes_are_counted_by_what_they_mean() -> None:
    meanings = np.zeros(256)
    meanings[:5] = math.nan, math.inf, -math.inf, -1.5, 2.5
    state = kernels.new_state()
    kernels.accumulate_codes(np.repeat(np.arange(6, dtype=np.uint8), 3), meanings, state)
    found = named(state)
    counts = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count")
    assert [found[name] for name in counts] == [18, 3, 3, 3, 3]
    assert (found["negative_count"], found["positive_count"], found["finite"]) == (6, 6, 9)
    assert (found["min"], found["max"]) == (-1.5, 2.5)
    assert found["mean"] + found["origin"] == pytest.approx(1 / 3)


def test_every_bit_pattern_of_float16_widens_to_the_same_number() -> None:
    """Subnormals, infinities, NaN and the sign of zero, as numpy has them."""
    half = np.arange(2**16, dtype=np.uint16).view(np.float16)
    found = np.empty(half.size, np.float32)
    kernels.widen_half(half, found)
    np.testing.assert_array_equal(found, half.astype(np.float32))
    is_number = ~np.isnan(half)
    np.testing.assert_array_equal(np.signbit(found[is_number]), np.signbit(half[is_number]))
