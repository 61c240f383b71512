"""Distances that float64 cannot hold are those of halves."""

import math

import numpy as np
import pytest

from workers.arrays.statistics import divisor_for

LARGEST, LEAST = float(np.finfo(np.float64).max), float(np.finfo(np.float64).smallest_subnormal)


@pytest.mark.parametrize(
    ("low", "high", "divisor"),
    [(-LARGEST, LARGEST, 2.0), (0.0, LARGEST, 1.0), (0.0, LEAST, 1.0), (-1.0, 1.0, 1.0)],
)
def test_the_difference_is_finite_and_not_lost(low: float, high: float, divisor: float) -> None:
    assert divisor_for(low, high) == divisor
    assert 0 < high / divisor - low / divisor < math.inf
