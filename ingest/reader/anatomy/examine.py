"""Examine the elements of a tensor piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.anatomy.answer import Anatomy, AxisCounts, NonFinite
from ingest.reader.anatomy.order_keys import are_numbers, widened
from ingest.reader.anatomy.percentiles import percentiles
from ingest.reader.text import value_text
from workers.arrays.spans import divisor_for
from workers.arrays.statistics import is_complex, widened_complex

#: Reads all elements once, in 1-D pieces in the order of the dump.
Pieces: TypeAlias = Callable[[], Iterable[npt.NDArray[Any]]]

#: Axes with more positions are left out: a count for each takes 8 bytes.
_MAX_AXIS = 1_000_000
_WORST = 10


def examine(
    pieces: Pieces,
    shape: tuple[int, ...],
    *,
    order: str = "C",
    percents: Sequence[float] = (),
    bins: int = 20,
    positions: int = 10,
) -> Anatomy:
    """Examine the values of a tensor. Reads it up to six times.

    Memory: five pieces, 16 MB for two axes of a million positions, and what `percentiles` takes.

    Args:
        pieces: reads all elements.
        shape: the lengths of the axes.
        order: `C` if the last axis is the fastest one in the dump, or `F`.
        percents: the percentiles to compute, 0 to 100.
        bins: the number of bins of the histogram, at least 1.
        positions: how many of the elements that are not finite are listed.
    """
    scan = _Scan(shape, order, positions)
    for piece in pieces():
        scan.add(piece)
    low, high, dtype = scan.low, scan.high, scan.dtype
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    values: dict[float, float] = {}
    if scan.finite and dtype is not None:
        edges, counts = _histogram(lambda: _finite(pieces()), low, high, bins)
        values = percentiles(lambda: _finite(pieces()), scan.finite, dtype, percents)
    return Anatomy(
        scan.elements,
        scan.nan,
        scan.pos_inf,
        scan.neg_inf,
        tuple(scan.first),
        scan.axes(),
        values,
        edges,
        counts,
    )


def _finite(pieces: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    for piece in pieces:
        wide = widened(piece)
        yield wide[np.isfinite(wide)] if wide.dtype.kind == "f" else wide


@dataclass
class _Scan:
    """The first pass: counts, limits, and where elements are not finite."""

    shape: tuple[int, ...]
    order: str
    positions: int
    elements: int = 0
    finite: int = 0
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    low: float = math.inf
    high: float = -math.inf
    dtype: np.dtype[Any] | None = None
    """The type in which finite elements are compared; None if they are complex, or no numbers."""
    first: list[NonFinite] = field(default_factory=list)
    _counts: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    """By axis: how many elements of each position are not finite."""

    def add(self, piece: npt.NDArray[Any]) -> None:
        """Take the next elements."""
        if is_complex(piece.dtype):
            piece = widened_complex(piece)
            # As in `workers.arrays.statistics`: NaN if either part is NaN, else +Inf if either is infinite.
            wide = np.where(np.isnan(piece), np.nan, np.where(np.isfinite(piece), 0.0, np.inf))
        elif not are_numbers(piece.dtype):
            self.elements += len(piece)
            return
        else:
            wide = widened(piece)
            self.dtype = wide.dtype
        if wide.dtype.kind == "f":
            is_finite = np.isfinite(wide)
            self._add_non_finite(wide, np.flatnonzero(~is_finite))
            self.elements += len(wide)
            wide = wide[is_finite]
        else:
            self.elements += len(wide)
        self.finite += len(wide)
        if len(wide):
            self.low, self.high = min(self.low, float(wide.min())), max(self.high, float(wide.max()))

    def _add_non_finite(self, wide: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> None:
        if not len(places):
            return
        values = wide[places]
        self.nan += int(np.isnan(values).sum())
        self.pos_inf += int((values == np.inf).sum())
        self.neg_inf += int((values == -np.inf).sum())
        if not self.shape:
            self.first.append(NonFinite((), value_text(float(values[0]))))
            return
        index = np.unravel_index(places + self.elements, self.shape, "F" if self.order == "F" else "C")
        for number in range(min(self.positions - len(self.first), len(places))):
            position = tuple(int(along[number]) for along in index)
            self.first.append(NonFinite(position, value_text(float(values[number]))))
        for axis, along in enumerate(index):
            length = self.shape[axis]
            if length <= _MAX_AXIS:
                counts = self._counts.setdefault(axis, np.zeros(length, np.int64))
                counts += np.bincount(along, minlength=length)

    def axes(self) -> tuple[AxisCounts, ...]:
        """Return at which positions of each axis elements are not finite."""
        return tuple(
            AxisCounts(axis, len(counts), int((counts > 0).sum()), _worst(counts))
            for axis, counts in sorted(self._counts.items())
        )


def _worst(counts: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    order = np.argsort(-counts, kind="stable")[:_WORST]
    return tuple((int(position), int(counts[position])) for position in order if counts[position])


def _histogram(read: Pieces, low: float, high: float, bins: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    if low == high:
        return (low, high), (sum(len(piece) for piece in read()),)
    divisor = divisor_for(low, high)
    edges = np.linspace(low / divisor, high / divisor, bins + 1)
    counts = np.zeros(bins, np.int64)
    for piece in read():
        places = np.searchsorted(edges, piece.astype(np.float64) / divisor, side="right") - 1
        counts += np.bincount(places.clip(0, bins - 1), minlength=bins)
    return tuple((edges * divisor).tolist()), tuple(counts.tolist())
