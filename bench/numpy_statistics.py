"""The statistics of `workers.arrays.statistics`, as one writes them with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def numpy_statistics(values: npt.NDArray[Any]) -> tuple[float, ...]:
    """Return the statistics of an array of numbers, in the order of `workers.arrays.statistics.FIELDS`."""
    values = values.reshape(-1)
    nan = np.isnan(values).sum() if values.dtype.kind == "f" else 0
    pos_inf = (values == np.inf).sum() if values.dtype.kind == "f" else 0
    neg_inf = (values == -np.inf).sum() if values.dtype.kind == "f" else 0
    zero, negative, positive = (values == 0).sum(), (values < 0).sum(), (values > 0).sum()
    finite = (values[np.isfinite(values)] if nan + pos_inf + neg_inf else values).astype(np.float64)
    counts = values.size, nan, pos_inf, neg_inf, zero, negative, positive
    if not finite.size:
        return (*map(float, counts), *[float("nan")] * 5)
    moments = np.min(finite), np.max(finite), finite.mean(), finite.std(), np.sqrt(np.square(finite).sum())
    return tuple(map(float, (*counts, *moments)))
