"""How far a computed result may be from the exact one by rounding alone: derived from types, never chosen."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np


@lru_cache(maxsize=64)
def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """Return the largest relative error of rounding a number to a type; 0 for types that do not round."""
    try:
        return float(np.finfo(dtype).eps) / 2
    except ValueError:
        pass
    try:
        return float(ml_dtypes.finfo(dtype).eps) / 2  # type: ignore[no-untyped-call]  # it has no types
    except ValueError:
        return 0.0
