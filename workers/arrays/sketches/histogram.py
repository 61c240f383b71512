"""How many elements of a tensor lie in each power of two, by sign: questions after the tensor is gone.

A histogram answers how many elements are above or below a bound: exactly if the bound is a power of two, else
between two numbers. Histograms of parts add up to that of the whole, in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled.histogram_loops import BINS, LAST, LOWEST_EXPONENT
from workers.arrays.dtypes import ElementType
from workers.arrays.statistics import Statistics, has_statistics

#: Columns of a histogram as it is stored: magnitudes are in (2**exponent, 2**(exponent+1)].
FIELDS = ("exponent", "positive", "negative")


@lru_cache(maxsize=256)  # asked for every tensor
def has_histogram(element: ElementType) -> bool:
    """Return whether tensors of this type have a histogram: those of real numbers have."""
    return has_statistics(element) and element.values.kind != "c" and element.name != "complex32"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number that is known to lie between two others; both are the same if it is known exactly."""

    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether it is known exactly."""
        return self.low == self.high


@dataclass(frozen=True, eq=False)
class Histogram:
    """The finite elements of a tensor by sign and power of two."""

    positive: npt.NDArray[np.int64]
    """(255,): how many are in (2**(b-127), 2**(b-126)]; the first begins at 0, the last may have no end."""
    negative: npt.NDArray[np.int64]
    """The same of their magnitudes."""
    zeros: int
    low: float
    """The smallest finite element; NaN if there is none."""
    high: float
    """The largest finite element; NaN if there is none."""

    @classmethod
    def of_rows(cls, rows: npt.NDArray[np.int64], statistics: Statistics) -> Self:
        """Return a histogram from how it is stored, (bin, 3), and the statistics of the same tensor.

        Raises:
            ValueError: it is not a histogram, or not that of these statistics.
        """
        places = rows[:, 0] - LOWEST_EXPONENT
        if places.size and (places.min() < 0 or places.max() > LAST or (rows[:, 1:] < 0).any()):
            raise ValueError("it has an impossible bin")
        positive, negative = np.zeros(BINS - 1, np.int64), np.zeros(BINS - 1, np.int64)
        np.add.at(positive, places, rows[:, 1])
        np.add.at(negative, places, rows[:, 2])
        expected = (
            statistics.positive_count - statistics.pos_inf_count,
            statistics.negative_count - statistics.neg_inf_count,
        )
        if (positive.sum(), negative.sum()) != expected:
            raise ValueError("it counts other elements than the statistics")
        return cls(positive, negative, int(statistics.zero_count), statistics.min, statistics.max)

    @property
    def magnitudes(self) -> npt.NDArray[np.int64]:
        """How many elements have a magnitude in each bin, (255,)."""
        return np.asarray(self.positive + self.negative)

    @property
    def nonzero(self) -> int:
        """The number of finite elements other than zero."""
        return self._up_to[-1]

    @property
    def finite(self) -> int:
        """The number of finite elements."""
        return self.nonzero + self.zeros

    @property
    def largest(self) -> float:
        """The largest magnitude, exactly; 0 if no element is finite."""
        return max(abs(self.low), abs(self.high)) if self.finite else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the bins that hold elements, of magnitudes in (2**exponent, 2**(exponent+1)].

        The first bin, of exponent -127, begins at 0; the last one, of 127, has no end.
        """
        bins = [
            {
                "exponent": LOWEST_EXPONENT + place,
                "positive": int(self.positive[place]),
                "negative": int(self.negative[place]),
            }
            for place in np.flatnonzero(self.magnitudes).tolist()
        ]
        return {"zeros": self.zeros, "bins": bins}

    @cached_property
    def _up_to(self) -> list[int]:
        """How many elements are in the first n bins of magnitudes, for n from 0 to 255."""
        return [0, *np.cumsum(self.magnitudes).tolist()]

    def at_most(self, bound: float) -> Bounds:
        """Return how many elements other than zero have a magnitude of at most `bound`.

        The number is exact if `bound` is a power of two from 2**-126 to 2**127, or not below the largest
        magnitude.
        """
        if bound <= 0:
            return Bounds(0, 0)
        if bound >= self.largest:
            return Bounds(self.nonzero, self.nonzero)
        mantissa, exponent = math.frexp(bound)  # 0.5 <= mantissa < 1, bound = mantissa * 2**exponent
        # The bin of (2**(exponent-1), 2**exponent], which ends at the bound if that is a power of two.
        place = exponent - 1 - LOWEST_EXPONENT
        if mantissa == 0.5 and 0 < place <= LAST:
            return Bounds(self._up_to[place], self._up_to[place])
        place = min(max(place, 0), LAST)
        below, through = self._up_to[place], self._up_to[place + 1]
        if through == self.nonzero > below:
            through -= 1  # the largest magnitude itself is above the bound
        return Bounds(below, through)

    def quantile(self, share: float, *, magnitude: bool = False) -> Bounds:
        """Return between which numbers a quantile of the finite elements lies, by `numpy.quantile`.

        Args:
            share: 0 to 1.
            magnitude: whether the quantile is that of the magnitudes.

        Returns:
            Bounds that differ by a factor of two at most if both elements between which numpy interpolates
            are in one bin, and NaN if no element is finite.
        """
        lows, highs, counts = self._intervals(magnitude=magnitude)
        if not self.finite:
            return Bounds(math.nan, math.nan)
        up_to = np.cumsum(counts)
        place = share * (self.finite - 1)
        first, last = (
            int(np.searchsorted(up_to, rank, side="right")) for rank in (math.floor(place), math.ceil(place))
        )
        if share in (0.0, 1.0) and not magnitude:
            edge = self.low if share == 0 else self.high
            return Bounds(edge, edge)
        if share == 1:
            return Bounds(self.largest, self.largest)
        return Bounds(float(lows[first]), float(highs[last]))

    def cumulative(self) -> npt.NDArray[np.float32]:
        """Return the share of the finite, nonzero elements up to the end of each bin, (255,).

        The shares are those of magnitudes, and NaN if there are no such elements. The sum of the differences
        between two of these arrays is the distance of the distributions by Wasserstein's metric, in powers
        of two: by how many of these elements moved on average.
        """
        if not self.nonzero:
            return np.full(BINS - 1, np.nan, np.float32)
        return (np.cumsum(self.magnitudes) / self.nonzero).astype(np.float32)

    def _intervals(
        self, *, magnitude: bool
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return lower and upper ends, and counts, of all bins that hold elements, in order of numbers."""
        edges = np.ldexp(1.0, np.arange(BINS) + LOWEST_EXPONENT)
        edges[0] = 0.0
        low, high = (0.0, self.largest) if magnitude else (self.low, self.high)
        above, below = edges[1:], edges[:-1]
        positive = self.magnitudes if magnitude else self.positive
        negative = np.zeros(0, np.int64) if magnitude else self.negative
        end = 0 if magnitude else BINS - 1
        lows = np.concatenate([-above[:end][::-1], [0.0], below])
        highs = np.concatenate([-below[:end][::-1], [0.0], above])
        counts = np.concatenate([negative[::-1], [self.zeros], positive])
        held = counts > 0
        lows, highs, counts = lows[held], highs[held], counts[held]
        if counts.size:
            # What is known exactly: the ends, also of a bin without one.
            lows[0] = low if not magnitude else lows[0]
            highs[-1] = high
        return np.clip(lows, low, None), np.clip(highs, None, high), counts
