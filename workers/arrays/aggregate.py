"""Several tensors as one number: which statistics there are, and how each of them is put together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import COUNT_FIELDS, FIELDS

#: Statistics that are sums of several others.
SUMS = {
    "inf_count": ("pos_inf_count", "neg_inf_count"),
    "non_finite_count": ("nan_count", "pos_inf_count", "neg_inf_count"),
}
#: Statistics that count non-finite elements themselves.
ABOUT_NON_FINITE = (*SUMS["non_finite_count"], *SUMS)
#: The names of all statistics.
STATISTICS = (*FIELDS, *SUMS)
#: Those that count elements.
COUNTS = (*COUNT_FIELDS, *SUMS)
AGGREGATES = ("max", "min", "sum", "mean")
#: Of two numbers, that which is not NaN counts.
_EXTREMES = {"max": np.fmax, "min": np.fmin}


def parts_of(statistic: str) -> tuple[str, ...]:
    """Return the statistics whose sum is this one: itself alone, unless it is one of `SUMS`."""
    return SUMS.get(statistic, (statistic,))


def default_aggregate(statistic: str) -> str:
    """Return the aggregate by which a statistic of several tensors becomes one number by default."""
    if statistic in COUNTS:
        return "sum"
    return "min" if statistic == "min" else "max"


def aggregated(values: npt.NDArray[np.float64], how: str) -> npt.NDArray[np.float64]:
    """Return one number, (...), over the tensors with known values; NaN if there are none.

    Args:
        values: (..., tensor); NaN for what is not known.
        how: one of `AGGREGATES`.
    """
    if how in _EXTREMES:
        if not values.shape[-1]:
            return np.full(values.shape[:-1], np.nan)
        extreme: npt.NDArray[np.float64] = _EXTREMES[how].reduce(values, axis=-1)
        return extreme
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    with np.errstate(over="ignore"):
        total = np.where(known, values, 0).sum(axis=-1)
    if how == "mean":
        total = total / np.maximum(count, 1)
    return np.where(count > 0, total, np.nan)


def joined(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], how: str
) -> npt.NDArray[np.float64]:
    """Return the aggregate over two groups of tensors from those of each, element by element.

    Args:
        first: the aggregates of one group; NaN where it has no known values.
        second: those of the other group.
        how: `max`, `min` or `sum`.
    """
    if how in _EXTREMES:
        extreme: npt.NDArray[np.float64] = _EXTREMES[how](first, second)
        return extreme
    return np.where(np.isnan(first), second, np.where(np.isnan(second), first, first + second))


def of_all_tensors(
    statistic_of: Callable[[str], npt.NDArray[np.float64]], ranks: int
) -> npt.NDArray[np.float64]:
    """Return every statistic of all tensors of a step, by its default aggregate: (rank, STATISTICS).

    Args:
        statistic_of: returns one of `FIELDS`, (rank, tensor); NaN for what is not known.
        ranks: how many ranks there are.
    """
    together = np.full((ranks, len(STATISTICS)), np.nan)
    for number, name in enumerate(STATISTICS):
        first, *others = (statistic_of(part) for part in parts_of(name))
        values = np.ascontiguousarray(sum(others, start=first))
        if values.size:
            together[:, number] = aggregated(values, default_aggregate(name))
    return together
