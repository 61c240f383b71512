"""Distances between numbers at the limits of float64."""

from __future__ import annotations

import math


def divisor_for(low: float, high: float) -> float:
    """Return by what two numbers are divided before they are subtracted: the difference is finite then.

    The least numbers are not divided: half of them is zero.
    """
    return 2.0 if math.isinf(high - low) else 1.0
