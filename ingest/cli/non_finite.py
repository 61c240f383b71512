"""How `trend` and `heatmap` present NaN and Inf."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from workers.arrays.aggregate import ABOUT_NON_FINITE


def marked(statistic: str, non_finite: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return where to mark NaN and Inf: nowhere if the statistic counts them itself.

    Args:
        statistic: the name of the statistic.
        non_finite: how many elements are NaN or infinite, of any shape; NaN if unknown.
    """
    return (non_finite > 0) & (statistic not in ABOUT_NON_FINITE)


def whole_count(value: float) -> int | None:
    """Return a count as an integer; None if it is NaN, which means unknown."""
    return None if math.isnan(value) else int(value)
