"""Many histograms at once: the answers of `Histogram` for thousands of tensors, without a loop over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.bounds import BoundedColumn
from workers.arrays.compiled.histogram_loops import BINS, LAST, LOWEST_EXPONENT
from workers.arrays.number_formats import NumberFormat
from workers.arrays.sketches.rounding import LEAST_UNIT

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
        first, last = (
            table._entry_at(some, whole(place).astype(np.int64))  # noqa: SLF001  (of the same class)
            for whole in (np.floor, np.ceil)
        )
        lows[some] = _lower_edges(table.bin[first])
        highs[some] = _upper_edges(table.bin[last])
        if not magnitude:
            at_begin = first == table._starts[some]  # noqa: SLF001  (of the same class)
            lows[some[at_begin]] = low[some[at_begin]]
        at_end = last == table._starts[some + 1] - 1  # noqa: SLF001  (of the same class)
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
        """Return how many elements but zeros have a magnitude up to a bound; see `Histogram.at_most`."""
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

    def _entry_at(self, tensors: _Integers, rank: _Integers) -> _Integers:
        """Return the entry that holds the element of this rank, in order of numbers, of each tensor."""
        before = self._up_to[self._starts[tensors]]
        return np.asarray(np.searchsorted(self._up_to[1:], before + rank, side="right"))

    def _summed(self, tensor: _Integers, count: _Integers) -> _Integers:
        up_to = np.concatenate([[0], np.cumsum(count)])
        return np.diff(up_to[np.searchsorted(tensor, np.arange(self.tensors + 1))])


def _lower_edges(number: _Integers) -> _Floats:
    edges: _Floats = np.where(number > 0, _EDGES[number - 1], -_EDGES[-number])
    return np.where(number == 0, 0.0, edges)


def _upper_edges(number: _Integers) -> _Floats:
    edges: _Floats = np.where(number > 0, _EDGES[number], -_EDGES[-number - 1])
    return np.where(number == 0, 0.0, edges)
