"""How far a computed result may be from the exact one by rounding alone: derived from types, never chosen."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import from_name

Array: TypeAlias = npt.NDArray[Any]


@lru_cache(maxsize=64)
def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """Return the largest relative error of rounding a number to a type; 0 for types that do not round."""
    try:
        return float(ml_dtypes.finfo(dtype).eps) / 2  # type: ignore[no-untyped-call]  # it has no types
    except ValueError:
        return 0.0


def unit_of(dtype: str) -> float:
    """Return the unit roundoff of a type by its name; 0 if it does not round, or is not known."""
    try:
        return unit_roundoff(from_name(dtype).values.newbyteorder("="))
    except (ValueError, TypeError):
        return 0.0


#: The largest sum of rounding errors, in units of the square root of their number: sums of n independent
#: errors of either sign exceed it with a probability of 2 exp(-LAMBDA**2 / 2) = 3e-8, even if every partial
#: sum were as large as the sum of all magnitudes (N. J. Higham and T. Mary, SIAM J. Sci. Comput. 41, 2019).
LAMBDA = 6.0
#: The roundings that a root, a quotient and a few products of a function are allowed.
FEW = 8.0
#: The roundings that exponentials, and what is made of them, are allowed: SLEEF and CUDA document 1 to 4
#: units in the last place, and others trade accuracy for speed: MindSpore's exponential for CPUs takes 40.
FUNCTION = 64.0
#: Larger numbers are found in memory that was not written yet, and their squares overflow float32.
UNWRITTEN = 1e15


def working_roundoff(dtype: np.dtype[Any]) -> float:
    """Return the unit roundoff with which results of a type are computed: narrow ones in float32."""
    return min(unit_roundoff(dtype) or 2.0**-24, 2.0**-24)


def sum_error(count: int, unit: float) -> float:
    """Return the error of a sum in any order, as a share of the sum of the magnitudes of its addends."""
    return min(float(count), LAMBDA * math.sqrt(count)) * unit


def limit_of(value: Array, error: Array | float, dtype: np.dtype[Any]) -> Array:
    """Return how far elements of a type may be from the exact values, (as `value`).

    Args:
        value: the exact values, float64.
        error: how far what is computed may be from them before it is rounded to the type.
        dtype: the type in which it is stored.
    """
    unit = unit_roundoff(dtype)
    # Of the smallest number that has all of its digits; types that do not round have none.
    least = float(ml_dtypes.finfo(dtype).smallest_normal) if unit else 0.0  # type: ignore[no-untyped-call]
    return np.asarray(error + unit * (np.abs(value) + error) + least * min(2 * unit, 1.0))
