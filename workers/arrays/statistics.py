"""Statistics of one tensor, in one pass and bounded memory.

Counts are exact. Minimum, maximum, mean, standard deviation and L2 norm are over the finite elements
and accumulated in float64: mean and squared deviations block by block, merged by Chan's formula
(Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm"), which does not cancel.
The L2 norm follows from both: the sum of squares is that of the deviations plus n times the squared mean.

Elements of one byte (integers, booleans, float8, unpacked 4-bit and 2-bit types) are counted by their codes,
of which there are 256.

Complex elements count as NaN if either part is NaN, else as +Inf if either part is infinite. Zero
counts and the L2 norm are of the magnitude, at most the largest float64; the other fields are NaN or 0.

`aggregated` and its neighbours put the statistics of several tensors together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import kernel_loops, kernels
from workers.arrays.compiled.kernel_loops import (
    FINITE,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    NEG_INF,
    ORIGIN,
    POS_INF,
    POSITIVE,
    UNIT,
)
from workers.arrays.compiled.kernels import accumulate_many
from workers.arrays.dtypes import FLOAT8, ElementType, from_name
from workers.arrays.marginals import NO_MARGINALS, MarginalTable, RunningMarginals


def divisor_for(low: float, high: float) -> float:
    """Return by what two numbers are divided before they are subtracted: the difference is finite then.

    The least numbers are not divided: half of them is zero.
    """
    return 2.0 if math.isinf(high - low) else 1.0


Array: TypeAlias = npt.NDArray[Any]

#: Elements that are converted at a time if they must be: a block and its copy stay in the L2 cache.
BLOCK = 32 * 1024
#: The type that the compiled functions take for each of ours.
_COMPILED: dict[np.dtype[Any], np.dtype[Any]] = {
    **{np.dtype(code): np.dtype(code) for code in ("f4", "f8", "i2", "u2", "i4", "u4", "i8", "u8")},
    np.dtype("f2"): np.dtype("f4"),
    np.dtype(">f2"): np.dtype("f4"),
    np.dtype(ml_dtypes.bfloat16): np.dtype("f4"),
}
#: Types of one byte that are numbers, in addition to the booleans and integers of numpy.
_CODED = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in (*FLOAT8, "int4", "uint4", "int2", "uint2", "float4_e2m1fn")
)
_COMPLEX32 = from_name("complex32").to_numpy()
_SUMMABLE = frozenset(np.dtype(t) for t in ("f2", "f4", "f8", "c8", "c16", ml_dtypes.bfloat16))

#: Marks the statistics that count elements.
_IS_COUNT = {"is_count": True}


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of the values of one tensor; NaN for what is unknown.

    This is the only list of all statistics: tables, cubes, conditions and trends derive names, order and
    kinds from it. Code that needs only some of them names those.

    `count` is the number of elements; `negative_count` and `positive_count` include infinities.
    `std` is the population standard deviation. Counts may be of either type here; those that users get, by
    `from_row`, are `int`.
    """

    count: float = field(default=math.nan, metadata=_IS_COUNT)
    nan_count: float = field(default=math.nan, metadata=_IS_COUNT)
    pos_inf_count: float = field(default=math.nan, metadata=_IS_COUNT)
    neg_inf_count: float = field(default=math.nan, metadata=_IS_COUNT)
    zero_count: float = field(default=math.nan, metadata=_IS_COUNT)
    negative_count: float = field(default=math.nan, metadata=_IS_COUNT)
    positive_count: float = field(default=math.nan, metadata=_IS_COUNT)
    min: float = math.nan
    max: float = math.nan
    mean: float = math.nan
    std: float = math.nan
    l2_norm: float = math.nan

    @classmethod
    def from_row(cls, row: Sequence[float]) -> Statistics:
        """Return statistics from values in the order of `FIELDS`; counts that are known become `int`."""
        return cls(
            *(
                int(value) if name in COUNT_FIELDS and math.isfinite(value) else value
                for name, value in zip(FIELDS, row, strict=True)
            )
        )

    def as_row(self) -> tuple[float, ...]:
        """Return the values in the order of `FIELDS`."""
        return tuple(getattr(self, name) for name in FIELDS)


#: The names of all statistics, in order.
FIELDS: tuple[str, ...] = tuple(statistic.name for statistic in fields(Statistics))
#: Those that are counts of elements, exact in float64 up to 2**53.
COUNT_FIELDS = tuple(statistic.name for statistic in fields(Statistics) if statistic.metadata == _IS_COUNT)
#: Those of the counts that are of elements which are not finite.
NON_FINITE_FIELDS = ("nan_count", "pos_inf_count", "neg_inf_count")
UNKNOWN = Statistics()

#: Where `RunningStatistics.row` has each statistic: in the state, or among those that it appends.
_APPENDED = ("std", "l2_norm")
_in_order: Callable[[tuple[float, ...]], tuple[float, ...]] = itemgetter(
    *map((*kernel_loops.PLACES, *_APPENDED).index, FIELDS)
)


class RunningStatistics:
    """Statistics of a tensor that arrives in pieces."""

    def __init__(self, *, with_histogram: bool = False, marginals: RunningMarginals | None = None) -> None:
        """Begin with no elements.

        Args:
            with_histogram: whether to count them by power of two in the same pass.
            marginals: what to add them to in the same pass, if they are floats: see `running_marginals`.
        """
        self._state = kernels.new_state()
        self._complex = False
        self._counts = kernels.take_counts() if with_histogram else None
        self._marginals = marginals
        self._not_finite = 0.0

    def update(self, values: Array) -> None:
        """Add a piece: a 1-D array of any type that `has_statistics`, of either byte order.

        Packed elements must be unpacked, as `workers.arrays.dtypes.unpack` returns them.
        """
        values = np.ascontiguousarray(values)  # as the kernels read it
        if values.dtype.itemsize == 1:
            meanings = _meanings(values.dtype)
            counts = kernels.accumulate_codes(values.view(np.uint8), meanings, self._state)
            if self._counts is not None:
                kernels.count_codes(counts, meanings, self._counts)
            return
        if is_complex(values.dtype):
            self._complex = True
            for block in _blocks(values):
                self._update_complex(widened_complex(block))
            return
        native = _COMPILED.get(values.dtype)
        if native == values.dtype:
            self._accumulate(values)
            return
        # Half precision and bfloat16 widen to float32 without loss. All blocks use one array: new ones
        # would cost more than the arithmetic on them.
        copy = np.empty(min(values.size, BLOCK), native or values.dtype.newbyteorder("="))
        for block in _blocks(values):
            converted = copy[: block.size]
            if values.dtype == np.float16:
                kernels.widen_half(block, converted)
            else:
                np.copyto(converted, block)
            self._accumulate(converted)

    def result(self) -> Statistics:
        """Return the statistics of all pieces so far."""
        return Statistics(*self.row())

    def row(self) -> tuple[float, ...]:
        """Return the values of `result` in the order of `FIELDS`, in a quarter of the time."""
        state = self._state.tolist()
        finite = state[FINITE]
        if not finite:
            state[MIN] = state[MAX] = state[MEAN] = math.nan
            return _in_order((*state, math.nan, math.nan))
        mean, m2, unit = state[MEAN] + state[ORIGIN], state[M2], state[UNIT]
        std = _scaled(math.sqrt(m2 / finite), unit)
        l2_norm = _scaled(math.sqrt(m2 + finite * mean * mean), unit)
        if self._complex:
            # The state is that of the magnitudes.
            state[POSITIVE] = 0.0
            state[MIN] = state[MAX] = state[MEAN] = std = math.nan
        else:
            state[MEAN] = min(max(_scaled(mean, unit), state[MIN]), state[MAX])
        return _in_order((*state, std, l2_norm))

    def histogram_rows(self) -> npt.NDArray[np.int64]:
        """Return the histogram of all pieces, (bin, 3); call it once. See `histogram.FIELDS`.

        It is empty if none is computed, or if the elements are complex.
        """
        counts, self._counts = self._counts, None
        if counts is None:
            return np.zeros((0, 3), np.int64)
        return kernels.sparse(counts, int(self._state[POS_INF]), int(self._state[NEG_INF]))

    def marginals(self) -> MarginalTable:
        """Return the marginals of all pieces; none if none are computed. Call it once."""
        return NO_MARGINALS if self._marginals is None else self._marginals.result()

    def _accumulate(self, block: Array) -> None:
        if self._counts is not None and block.dtype.kind == "f":
            kernels.accumulate_floats(block, self._state, self._counts)
        else:
            kernels.accumulate(block, self._state)
            if self._counts is not None:
                for part in _blocks(block):  # of 64 bits, those above 2**53 are rounded
                    kernels.count_floats(part.astype(np.float64), self._counts)
        if self._marginals is not None:
            not_finite = sum(self._state[NAN : NEG_INF + 1].tolist())
            self._marginals.update(block, finite=not_finite == self._not_finite)
            self._not_finite = not_finite

    def _update_complex(self, block: Array) -> None:
        finite = np.isfinite(block)
        nan = np.count_nonzero(np.isnan(block))
        inf = block.size - nan - np.count_nonzero(finite)
        with np.errstate(over="ignore"):
            magnitudes = np.abs(block[finite].astype(np.complex128))
        # A magnitude beyond float64 is not an infinite element.
        kernels.accumulate(np.minimum(magnitudes, sys.float_info.max, out=magnitudes), self._state)
        self._state[kernel_loops.COUNT] += nan + inf
        self._state[kernel_loops.NAN] += nan
        self._state[kernel_loops.POS_INF] += inf


@lru_cache(maxsize=64)
def _meanings(dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    codes = np.arange(256, dtype=np.uint8)
    if dtype.kind == "b":
        codes, dtype = (codes != 0).view(np.uint8), np.dtype(np.uint8)  # any byte but 0 is true
    meanings: npt.NDArray[np.float64] = codes.view(dtype).astype(np.float64)
    return meanings


def is_complex(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are complex numbers, also of the type that numpy lacks."""
    return dtype.kind == "c" or dtype == _COMPLEX32


def widened_complex(block: Array) -> Array:
    """Return complex elements in a type that numpy can calculate with."""
    if block.dtype != _COMPLEX32:
        return block
    return block.view("<f2").astype(np.float32).view(np.complex64)


def _blocks(values: Array) -> Iterator[Array]:
    for start in range(0, values.size, BLOCK):
        yield values[start : start + BLOCK]


def _scaled(value: float, unit: float) -> float:
    """Return `value * unit`. If only rounding makes it infinite, return the largest float64 instead."""
    largest = sys.float_info.max
    if unit > 1 and largest < abs(value) * unit and abs(value) <= largest / unit * (1 + 1e-12):
        return math.copysign(largest, value)
    return value * unit


def takes_many(dtype: np.dtype[Any]) -> bool:
    """Return whether `summarise_many` takes elements of this type: real floats in native byte order."""
    return _COMPILED.get(dtype, dtype).kind == "f" and dtype.isnative and dtype in _SUMMABLE


def summarise_many(
    values: Array, sizes: Sequence[int]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Add up many small tensors as `RunningStatistics` does, in a tenth of the time; see `rows_of`.

    Args:
        values: the tensors one after the other, of a type that `takes_many`.
        sizes: how many elements each has, at least one.

    Returns:
        Their states, (tensor, place); the rows of all histograms; and how many of them each tensor has.
    """
    native = _COMPILED[values.dtype]
    if values.dtype == np.float16:
        wide = np.empty(values.size, native)
        kernels.widen_half(values, wide)
    else:
        wide = values.astype(native, copy=False)
    return accumulate_many(wide, sizes)


def rows_of(states: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what `RunningStatistics.row` does, to the last bit, of states of real elements.

    It takes as long for thousands as for a few.
    """
    state = dict(zip(kernel_loops.PLACES, states.T, strict=True))
    finite, unit, largest = state["finite"], state["unit"], sys.float_info.max
    with np.errstate(all="ignore"):
        mean = state["mean"] + state["origin"]
        std, l2_norm = np.sqrt(state["m2"] / finite), np.sqrt(state["m2"] + finite * mean * mean)
        scaled = np.stack([mean, std, l2_norm])
        is_rounded = (unit > 1) & (np.abs(scaled) <= largest / unit * (1 + 1e-12))
        product = scaled * unit
        mean, std, l2_norm = np.where(is_rounded & np.isinf(product), np.copysign(largest, scaled), product)
    mean = np.where(state["min"] > mean, state["min"], mean)
    columns = state | {
        "mean": np.where(state["max"] < mean, state["max"], mean),
        "std": std,
        "l2_norm": l2_norm,
    }
    rows = np.stack([columns[name] for name in FIELDS], axis=1)
    rows[finite == 0, FIELDS.index("min") :] = math.nan
    return rows


def summarise(values: Array) -> Statistics:
    """Return the statistics of a 1-D array that is in memory completely."""
    running = RunningStatistics()
    running.update(values)
    return running.result()


@lru_cache(maxsize=256)  # asked for every tensor
def has_statistics(kind: ElementType | np.dtype[Any]) -> bool:
    """Return whether elements of this type are numbers that can be summarised.

    Opaque elements can be told from numbers only by their `ElementType`: their dtype is `uint8`.
    """
    if isinstance(kind, ElementType):
        return not kind.is_opaque and has_statistics(kind.values)
    # Long double is left out: it does not fit into float64, in which everything is accumulated.
    return kind.kind in "biu" or kind in _CODED or kind == _COMPLEX32 or kind.newbyteorder("=") in _SUMMABLE


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
