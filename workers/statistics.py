"""Statistics of one tensor, in one pass and bounded memory.

Counts are exact. Minimum, maximum, mean, standard deviation and L2 norm are over the finite elements
and accumulated in float64: mean and squared deviations block by block, joined by Chan's formula
(Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm"), which does not cancel.
No BLAS: the last bits of its sums depend on the number of threads.

Complex elements count as NaN when either part is NaN, else as +Inf when either part is infinite; zero
counts and the L2 norm are of the magnitude, the other fields are NaN or 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

#: Elements per block: a block and its float64 copy stay in the L2 cache.
BLOCK = 32 * 1024
#: Above `_MANY` and below its inverse, elements are scaled by these before they are squared; powers of two,
#: so that nothing is rounded.
_MANY, _HUGE, _TINY = 2.0**480, 2.0**600, 2.0**-600


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of the values of one tensor; NaN where nothing is known.

    `count` is the number of elements; `negative_count` and `positive_count` include infinities.
    `std` is the population standard deviation.
    """

    count: float = math.nan
    nan_count: float = math.nan
    pos_inf_count: float = math.nan
    neg_inf_count: float = math.nan
    zero_count: float = math.nan
    negative_count: float = math.nan
    positive_count: float = math.nan
    min: float = math.nan
    max: float = math.nan
    mean: float = math.nan
    std: float = math.nan
    l2_norm: float = math.nan

    def as_row(self) -> tuple[float, ...]:
        """Return the values in the order of `FIELDS`."""
        return tuple(getattr(self, field) for field in FIELDS)


_SUMMABLE = frozenset(np.dtype(t) for t in ("f2", "f4", "f8", "c8", "c16", ml_dtypes.bfloat16))
FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Statistics))
#: The fields that are counts of elements, exact in float64 up to 2**53.
COUNT_FIELDS = FIELDS[:7]
UNKNOWN = Statistics()


class RunningStatistics:
    """Statistics of a tensor that arrives in pieces."""

    def __init__(self) -> None:
        self._counts = [0] * len(COUNT_FIELDS)
        self._finite = 0
        self._min, self._max = math.inf, -math.inf
        # In units of `_unit` and its square, so that no square of a finite element is infinite or vanishes.
        self._mean = self._m2 = self._sum_of_squares = 0.0
        self._unit = 1.0
        self._complex = False
        # One block, used again and again: a fresh one would cost more than the arithmetic on it.
        self._scratch = np.empty(0)

    def update(self, values: Array) -> None:
        """Take in a piece: a 1-D array of any numeric or boolean dtype, of either byte order."""
        self._complex = values.dtype.kind == "c"
        if len(self._scratch) < min(values.size, BLOCK):
            self._scratch = np.empty(min(values.size, BLOCK))
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, values.size, BLOCK):
                block = values[start : start + BLOCK]
                if self._complex:
                    self._update_complex(block)
                else:
                    self._update_real(block)

    def result(self) -> Statistics:
        """Return the statistics of everything taken in so far."""
        known = self._finite > 0 and not self._complex
        return Statistics(
            **{name: float(n) for name, n in zip(COUNT_FIELDS, self._counts, strict=True)},
            min=self._min if known else math.nan,
            max=self._max if known else math.nan,
            mean=self._mean * self._unit if known else math.nan,
            std=math.sqrt(self._m2 / self._finite) * self._unit if known else math.nan,
            l2_norm=math.sqrt(self._sum_of_squares) * self._unit if self._finite else math.nan,
        )

    def _update_real(self, block: Array) -> None:
        nan = pos_inf = neg_inf = 0
        finite = self._scratch[: block.size]
        np.copyto(finite, block, casting="unsafe")
        low, high = float(finite.min()), float(finite.max())
        if not (math.isfinite(low) and math.isfinite(high)):  # NaN is both
            nan = int(np.count_nonzero(np.isnan(finite)))
            pos_inf = int(np.count_nonzero(finite == math.inf))
            neg_inf = int(np.count_nonzero(finite == -math.inf))
            finite = finite[np.isfinite(finite)]
            low, high = float(finite.min(initial=math.inf)), float(finite.max(initial=-math.inf))
        negative = int(np.count_nonzero(finite < 0)) if low < 0 else 0
        zero = int(np.count_nonzero(finite == 0)) if low <= 0 <= high else 0
        positive = finite.size - negative - zero
        self._count(block.size, nan, pos_inf, neg_inf, zero, negative + neg_inf, positive + pos_inf)
        if finite.size:
            self._min, self._max = min(self._min, low), max(self._max, high)
            self._choose_unit(max(abs(self._min), abs(self._max)))
            self._merge_moments(finite)

    def _count(self, *counts: int) -> None:
        self._counts = [before + more for before, more in zip(self._counts, counts, strict=True)]

    def _merge_moments(self, finite: npt.NDArray[np.float64]) -> None:
        """Merge the moments of a block, which is overwritten."""
        n = finite.size
        if self._unit != 1:
            finite /= self._unit
        mean = float(finite.sum()) / n
        finite -= mean
        finite *= finite
        m2 = float(finite.sum())
        self._sum_of_squares += m2 + mean * mean * n
        delta = mean - self._mean
        total = self._finite + n
        self._mean += delta * (n / total)
        self._m2 += m2 + delta * delta * (self._finite * n / total)
        self._finite = total

    def _choose_unit(self, largest: float) -> None:
        """Choose the unit for elements up to `largest`, which never shrinks."""
        unit = _HUGE if largest > _MANY else _TINY if 0 < largest < 1 / _MANY else 1.0
        if unit != self._unit:
            ratio = self._unit / unit
            self._mean *= ratio
            self._m2 = self._m2 * ratio * ratio
            self._sum_of_squares = self._sum_of_squares * ratio * ratio
            self._unit = unit

    def _update_complex(self, block: Array) -> None:
        nan = int(np.count_nonzero(np.isnan(block)))
        finite = np.isfinite(block)
        magnitude = np.abs(block[finite].astype(np.complex128))
        zero = magnitude.size - int(np.count_nonzero(magnitude))
        self._count(block.size, nan, block.size - nan - int(np.count_nonzero(finite)), 0, zero, 0, 0)
        self._finite += magnitude.size
        self._max = float(magnitude.max(initial=max(self._max, 0)))
        self._choose_unit(self._max)
        self._sum_of_squares += float(np.sum(np.square(magnitude / self._unit)))


def summarise(values: Array) -> Statistics:
    """Return the statistics of a 1-D array that is in memory as a whole."""
    running = RunningStatistics()
    running.update(values)
    return running.result()


def has_statistics(dtype: np.dtype[Any]) -> bool:
    """Whether elements of this type are numbers that can be summarised."""
    # Not long double: it does not fit into float64, in which everything is accumulated.
    return dtype.kind in "biu" or dtype.newbyteorder("=") in _SUMMABLE
