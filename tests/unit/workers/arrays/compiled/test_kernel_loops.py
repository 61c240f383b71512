"""The parts of the loops as Python runs them: `test_kernels` and `test_statistics` test their object code."""

import math
from typing import Any

import numpy as np
import pytest

from tests.plain_loops import plain
from workers.arrays.compiled import kernel_loops as loops


class Bits(list[int]):
    """Keeps what is written as the bits of an element, as memory does."""

    def __init__(self, size: int) -> None:
        super().__init__([0, 0])
        self._mask = (1 << 8 * size) - 1

    def __setitem__(self, place: Any, bits: Any) -> None:
        super().__setitem__(place, int(bits) & self._mask)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize(
    "values", [[1, 2, 3], [-1, -2, -3], [-2, 0, 5], [7], [1e-40, -1e-40], [math.inf, 1], [-math.inf, -1]]
)
def test_extremes_come_from_the_bits(size: int, values: list[float]) -> None:
    x = np.array(values, f"f{size}")
    extremes = Bits(size)
    plain(loops._find_extremes)(x.view(f"i{size}"), x.view(f"u{size}"), extremes)
    assert sorted(np.array(extremes, f"u{size}").view(x.dtype).tolist()) == [x.min(), x.max()]


def test_signs_are_counted() -> None:
    x = np.array([-1, 0, -0.0, 2, math.nan, -math.inf], "f4")
    assert plain(loops._signs)(x, np.zeros(1, "i4")) == (2, 2)


def test_halves_are_widened_exactly() -> None:
    """All numbers, subnormal ones and infinities included; NaN stays NaN."""
    half = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    out = np.zeros(len(half), "f4")
    with np.errstate(all="ignore"):
        plain(loops.widen_half)(half, out, out.view("i4"))
        expected = half.view("f2").astype("f4")
    assert np.array_equal(out, expected, equal_nan=True)


def test_places_have_numbers_of_their_own() -> None:
    assert loops.PLACES[loops.ORIGIN] == "origin"
    assert loops.PLACES[loops.NAN] == "nan_count"
    assert loops.PLACES[loops.FINITE] == "finite"
    assert len(set(loops.PLACES)) == len(loops.PLACES)
