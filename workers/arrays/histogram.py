"""How many elements of a tensor lie in each power of two, by sign: questions after the tensor is gone.

A histogram answers how many elements are above or below a bound: exactly if the bound is a power of two, else
between two numbers. Histograms of parts add up to that of the whole, in any order.

What a cast to another format would lose follows from a histogram alone. A scale multiplies elements before
the cast. Counts are exact if bounds fall between two bins. For underflow, they do if the scale is a power of
two; for overflow, if nothing overflows. Otherwise, a count lies between two numbers that differ by the
elements of one bin.

`HistogramTable` has the answers of `Histogram` for thousands of tensors, without a loop over them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled.kernel_loops import BINS, LAST, LOWEST_EXPONENT
from workers.arrays.dtypes import ElementType, NumberFormat
from workers.arrays.filter import BoundedColumn
from workers.arrays.statistics import Statistics, has_statistics

#: Columns of a histogram as it is stored: magnitudes are in (2**exponent, 2**(exponent+1)].
FIELDS = ("exponent", "positive", "negative")
NO_BINS = np.zeros((0, len(FIELDS)), np.int64)


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
        low, high = (0.0, self.largest) if magnitude else (self.low, self.high)
        above, below = _EDGES[1:], _EDGES[:-1]
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


#: The least scale that is assumed of a block: what is smaller has no inverse in float64.
LEAST_UNIT = sys.float_info.min


@dataclass(frozen=True, slots=True)
class Losses:
    """How many elements a cast loses."""

    overflow: Bounds
    """Finite elements that become infinite or NaN, or are cut off."""
    underflow: Bounds
    """Elements other than zero that become zero."""

    @property
    def is_exact(self) -> bool:
        """Whether both are known exactly."""
        return self.overflow.is_exact and self.underflow.is_exact


def losses(histogram: Histogram, target: NumberFormat, scale: float = 1.0) -> Losses:
    """Return the losses of a cast of a tensor to `target`.

    In a format with blocks, each block has a scale of its own, by which its largest magnitude is the largest
    of the format or less: nothing overflows. No block has a larger one than the tensor has, which bounds
    underflow from above; `scale` does not matter.
    """
    if target.block:
        return Losses(Bounds(0, 0), Bounds(0, _blocks_underflow(histogram, target)))
    kept = histogram.at_most(target.limit / scale)
    overflow = Bounds(histogram.nonzero - kept.high, histogram.nonzero - kept.low)
    return Losses(overflow, histogram.at_most(target.vanishing / scale))


def _blocks_underflow(histogram: Histogram, target: NumberFormat) -> float:
    if not histogram.largest:
        return 0
    unit = max(histogram.largest / target.largest, LEAST_UNIT)
    if target.has_power_scales:
        unit = 1 / power_below(1 / unit)
    return histogram.at_most(target.vanishing * unit).high


def scale_for(largest: float, target: NumberFormat, *, powers_of_two: bool) -> float:
    """Return the scale by which a magnitude becomes the largest of a format; 1 if it is 0.

    Args:
        largest: the magnitude.
        target: the format.
        powers_of_two: whether scales are powers of two, rounded down.
    """
    if not largest:
        return 1.0
    scale = target.largest / largest
    if math.isinf(scale):
        return math.ldexp(1.0, 1023)
    return power_below(scale) if powers_of_two else scale


def power_below(number: float) -> float:
    """Return the largest power of two that is not above a positive number."""
    return math.ldexp(1.0, math.frexp(number)[1] - 1)


_Floats: TypeAlias = npt.NDArray[np.float64]
_Integers: TypeAlias = npt.NDArray[np.int64]

#: Bin b is (EDGES[b], EDGES[b+1]].
_EDGES = np.ldexp(1.0, np.arange(BINS) + LOWEST_EXPONENT)
_EDGES[0] = 0.0


@dataclass(frozen=True, eq=False)
class HistogramTable:
    """The finite elements of many tensors by sign and power of two; see `Histogram`.

    A bin is named by a number: 0 holds zeros, 1 to 255 positive elements, -1 to -255 those that are negative.
    """

    tensor: _Integers
    """(entry,): the number of the tensor, ascending."""
    bin: _Integers
    """(entry,): of one tensor, ascending."""
    count: _Integers
    """(entry,): how many elements of the tensor are in the bin; above 0."""
    low: _Floats
    """(tensor,): the smallest finite element; NaN if there is none."""
    high: _Floats
    """(tensor,): the largest finite element; NaN if there is none."""

    @classmethod
    def of_entries(
        cls,
        tensor: _Integers,
        bins: _Integers,
        zeros: _Integers,
        low: _Floats,
        high: _Floats,
    ) -> HistogramTable:
        """Return a table from histograms as they are stored.

        Args:
            tensor: of which tensor each entry is, (entry,); in any order.
            bins: exponent, and how many positive and negative elements, (entry, 3).
            zeros: how many elements of each tensor are zero, (tensor,).
            low: the smallest finite element of each, (tensor,); NaN if there is none.
            high: the largest one, (tensor,); NaN if there is none.
        """
        place = bins[:, 0] - LOWEST_EXPONENT + 1
        tensors = np.concatenate([tensor, tensor, np.arange(len(zeros))])
        numbers = np.concatenate([place, -place, np.zeros(len(zeros), np.int64)])
        counts = np.concatenate([bins[:, 1], bins[:, 2], zeros])
        held = counts > 0
        tensors, numbers, counts = tensors[held], numbers[held], counts[held]
        order = np.argsort(tensors * (2 * BINS) + numbers, kind="stable")
        return cls(tensors[order], numbers[order], counts[order], low, high)

    @property
    def tensors(self) -> int:
        """The number of tensors."""
        return len(self.low)

    @cached_property
    def largest(self) -> _Floats:
        """The largest magnitudes, (tensor,); 0 if no element is finite."""
        return np.where(self.finite > 0, np.maximum(np.abs(self.low), np.abs(self.high)), 0.0)

    @cached_property
    def finite(self) -> _Integers:
        """How many elements are finite, (tensor,)."""
        return self._summed(self.tensor, self.count)

    @cached_property
    def nonzero(self) -> _Integers:
        """How many elements are finite and not zero, (tensor,)."""
        other = self.bin != 0
        return self._summed(self.tensor[other], self.count[other])

    @cached_property
    def of_magnitudes(self) -> HistogramTable:
        """The magnitudes of the same tensors: no element is negative, and `low` stays as it is."""
        order = np.argsort(self.tensor * BINS + np.abs(self.bin), kind="stable")
        tensor, number = self.tensor[order], np.abs(self.bin)[order]
        is_first = np.ones(len(tensor), bool)
        is_first[1:] = (np.diff(tensor) != 0) | (np.diff(number) != 0)
        starts = np.flatnonzero(is_first)
        count = np.add.reduceat(self.count[order], starts) if len(starts) else self.count
        return HistogramTable(tensor[starts], number[starts], count, self.low, self.high)

    def quantile(self, share: float, *, magnitude: bool = False) -> BoundedColumn:
        """Return bounds of a quantile of each tensor, (tensor,); see `Histogram.quantile`."""
        table = self.of_magnitudes if magnitude else self
        low, high = (np.zeros(self.tensors), self.largest) if magnitude else (self.low, self.high)
        lows, highs = (np.full(self.tensors, np.nan) for _ in range(2))
        some = np.flatnonzero(self.finite)
        place = share * (self.finite[some] - 1)
        up_to, starts = table._up_to, table._starts  # noqa: SLF001  (of the same class)
        first, last = (
            np.searchsorted(up_to[1:], up_to[starts[some]] + whole(place).astype(np.int64), side="right")
            for whole in (np.floor, np.ceil)
        )
        lows[some] = _lower_edges(table.bin[first])
        highs[some] = 0.0 - _lower_edges(-table.bin[last])
        if not magnitude:
            at_begin = first == starts[some]
            lows[some[at_begin]] = low[some[at_begin]]
        at_end = last == starts[some + 1] - 1
        highs[some[at_end]] = high[some[at_end]]
        if share in (0.0, 1.0) and not (magnitude and share == 0):
            edge = np.where(self.finite > 0, low if share == 0 else high, np.nan)
            return BoundedColumn(edge, edge)
        return BoundedColumn(np.maximum(lows, low), np.minimum(highs, high))

    def overflow(self, target: NumberFormat) -> BoundedColumn:
        """Return how many elements of each tensor a cast without a scale makes too large, (tensor,)."""
        if target.block:
            return BoundedColumn(np.zeros(self.tensors), np.zeros(self.tensors))
        kept = self._at_most(np.full(self.tensors, target.limit))
        return BoundedColumn(self.nonzero - kept.high, self.nonzero - kept.low)

    def underflow(self, target: NumberFormat) -> BoundedColumn:
        """Return how many elements of each tensor a cast without a scale makes zero, (tensor,)."""
        if not target.block:
            return self._at_most(np.full(self.tensors, target.vanishing))
        unit = np.maximum(self.largest / target.largest, LEAST_UNIT)
        if target.has_power_scales:
            unit = 1 / np.ldexp(1.0, np.frexp(1 / unit)[1] - 1)
        upper = np.where(self.largest > 0, self._at_most(target.vanishing * unit).high, 0.0)
        return BoundedColumn(np.zeros(self.tensors), upper)

    def _at_most(self, bound: _Floats) -> BoundedColumn:
        mantissa, exponent = np.frexp(bound)
        place = exponent.astype(np.int64) - 1 - LOWEST_EXPONENT
        is_edge = (mantissa == 0.5) & (place > 0) & (place <= LAST)
        place = np.clip(place, 0, LAST)
        below, through = self._below(place), self._below(place + 1)
        # Where a bin is cut, the largest magnitude itself is above the bound.
        through = through - ((through == self.nonzero) & (self.nonzero > below))
        is_all = bound >= self.largest
        low = np.where(is_all, self.nonzero, below)
        high = np.where(is_all, self.nonzero, np.where(is_edge, below, through))
        some = bound > 0
        return BoundedColumn(np.where(some, low, 0.0), np.where(some, high, 0.0))

    def _below(self, place: _Integers) -> _Integers:
        """Return how many elements other than zero are in the first bins of magnitudes, (tensor,)."""
        table = self.of_magnitudes
        end = np.searchsorted(table._keys, np.arange(self.tensors) * BINS + place, side="right")  # noqa: SLF001
        up_to = table._up_to  # noqa: SLF001  (of the same class)
        zeros = self.finite - self.nonzero
        return np.asarray(up_to[end] - up_to[table._starts[:-1]] - zeros)  # noqa: SLF001  (of the same class)

    @cached_property
    def _keys(self) -> _Integers:
        """(entry,): tensor and bin as one number, ascending in a table of magnitudes."""
        return self.tensor * BINS + self.bin

    @cached_property
    def _starts(self) -> _Integers:
        """(tensor + 1,): the first entry of each tensor, and the end."""
        return np.searchsorted(self.tensor, np.arange(self.tensors + 1))

    @cached_property
    def _up_to(self) -> _Integers:
        """(entry + 1,): how many elements are in the entries before each, of all tensors together."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.count)])

    def _summed(self, tensor: _Integers, count: _Integers) -> _Integers:
        up_to = np.concatenate([[0], np.cumsum(count)])
        return np.diff(up_to[np.searchsorted(tensor, np.arange(self.tensors + 1))])


def _lower_edges(number: _Integers) -> _Floats:
    edges: _Floats = np.where(number > 0, _EDGES[number - 1], -_EDGES[-number])
    return np.where(number == 0, 0.0, edges)
