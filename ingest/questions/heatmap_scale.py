"""How a heatmap tells its values apart: zero, levels of what is above zero, and counts of all elements.

Counts have a logarithmic scale: a step with 2000 NaN and one with 20000 must both differ from one with none,
and also from one in which every element is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workers.arrays.aggregate import COUNTS

if TYPE_CHECKING:
    import xarray as xr

#: The ratio of the greatest to the least value above which a scale is logarithmic.
LOGARITHMIC = 1000
#: How many levels there are between zero and all, or without these.
_LEVELS, _LEVELS_OF_COUNTS = 4, 3
#: In place of a level: the value is unknown; it is zero; it is the number of all elements.
UNKNOWN, ZERO, ALL = -1, 0, 5


@dataclass(frozen=True, slots=True, eq=False)
class HeatmapScale:
    """The level of each value, and the range of values of each level."""

    level: npt.NDArray[np.int64]
    """(rank, step): `UNKNOWN`, `ZERO`, 1 to 4, or `ALL`."""
    ranges: tuple[tuple[int, float, float], ...]
    """Each level from 1, with the least and the greatest value that it may hold."""
    is_count: bool
    """Whether the values are whole numbers of elements."""

    @classmethod
    def of(cls, field: xr.DataArray) -> HeatmapScale:
        """Return the scale of a heatmap, (rank, step)."""
        values, statistic = field.values, field.attrs["statistic"]
        is_count = statistic in COUNTS and field.attrs["aggregate"] != "mean"
        is_zero, is_whole = zeros(field), wholes(field)
        is_between = np.isfinite(values) & ~is_zero & ~is_whole
        # What counts elements leaves the highest level to counts of all elements.
        levels = _LEVELS_OF_COUNTS if _counts_some(statistic) else _LEVELS
        level = np.full(values.shape, UNKNOWN)
        lows, high = _levels(values[is_between], levels, is_count=is_count)
        # The only level is the highest.
        first = 1 if len(lows) > 1 else levels
        level[is_between] = np.searchsorted(lows, values[is_between], side="right") - 1 + first
        level[is_zero], level[is_whole] = ZERO, ALL
        highs = [*(low - is_count for low in lows[1:]), high]
        ranges = [(first + place, *ends) for place, ends in enumerate(zip(lows, highs, strict=False))]
        return cls(level, tuple(ranges), is_count)

    @property
    def has_logarithmic_counts(self) -> bool:
        """Return whether the scale is logarithmic because the values are counts."""
        return self.is_count and bool(self.ranges)


def zeros(field: xr.DataArray) -> npt.NDArray[np.bool_]:
    """Return where a heatmap is zero; nowhere if values are negative, because then zero is not the least."""
    values = field.values
    return np.asarray((values == 0) & ~(values < 0).any())


def wholes(field: xr.DataArray) -> npt.NDArray[np.bool_]:
    """Return where a heatmap counts all elements that there are."""
    attrs = field.attrs
    is_total = attrs["aggregate"] == "sum" or attrs["tensors"] == 1
    if not (_counts_some(attrs["statistic"]) and is_total):
        return np.zeros(field.shape, bool)
    elements = field["elements"].values
    return np.asarray((field.values == elements) & (elements > 0))


def is_logarithmic(values: npt.NDArray[np.float64]) -> bool:
    """Return whether a logarithmic scale suits these values: all above zero, and far apart."""
    known = values[np.isfinite(values)]
    if not known.size or np.min(known) <= 0:
        return False
    return math.log(np.max(known)) - math.log(np.min(known)) > math.log(LOGARITHMIC)


def _counts_some(statistic: str) -> bool:
    """Return whether a statistic counts those elements of a tensor that are so, and not all of them."""
    return statistic in COUNTS and statistic != "count"


def _levels(values: npt.NDArray[np.float64], levels: int, *, is_count: bool) -> tuple[list[float], float]:
    """Return the least value of each level, and the greatest value of all."""
    if not values.size:
        return [], math.nan
    low, high = float(values.min()), float(values.max())
    shares = [part / levels for part in range(1, levels)] if low < high else []
    if (is_count and low > 0) or is_logarithmic(values):
        begin, span = math.log(low), math.log(high) - math.log(low)
        # A share that is a whole number but for rounding must not be taken for more.
        lows = [low, *(math.exp(begin + span * share) * (1 - 1e-12) for share in shares)]
    else:
        # Halved first: the difference of two large numbers is infinite.
        lows = [low, *(2 * (low / 2 + (high / 2 - low / 2) * share) for share in shares)]
    return list(dict.fromkeys(map(math.ceil, lows))) if is_count else lows, high
