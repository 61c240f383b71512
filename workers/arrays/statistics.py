"""Statistics of one tensor, in one pass and bounded memory.

Counts are exact. Minimum, maximum, mean, standard deviation and L2 norm are over the finite elements
and accumulated in float64: mean and squared deviations block by block, joined by Chan's formula
(Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm"), which does not cancel.
The L2 norm follows from both: the sum of squares is that of the deviations plus n times the squared mean.

Elements of one byte (integers, booleans, float8, unpacked 4-bit and 2-bit types) are counted by their codes,
of which there are 256.

Complex elements count as NaN when either part is NaN, else as +Inf when either part is infinite; zero
counts and the L2 norm are of the magnitude, the other fields are NaN or 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from workers.arrays import kernels
from workers.arrays.dtypes import FLOAT8, ElementType, from_name

if TYPE_CHECKING:
    from types import ModuleType

Array: TypeAlias = npt.NDArray[Any]

#: Elements that are converted at a time, where they must be: a block and its copy stay in the L2 cache.
BLOCK = 32 * 1024
#: The type that the compiled functions take for each of ours.
_COMPILED: dict[np.dtype[Any], np.dtype[Any]] = {
    **{np.dtype(code): np.dtype(code) for code in ("f4", "f8", "i2", "u2", "i4", "u4", "i8", "u8")},
    np.dtype("f2"): np.dtype("f4"),
    np.dtype(">f2"): np.dtype("f4"),
    np.dtype(ml_dtypes.bfloat16): np.dtype("f4"),
}
#: Types of one byte that are numbers, beside the booleans and integers of numpy.
_CODED = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in (*FLOAT8, "int4", "uint4", "int2", "uint2", "float4_e2m1fn")
)
_COMPLEX32 = from_name("complex32").to_numpy()


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
        self._kernels = _kernels()
        self._state = self._kernels.new_state()
        self._complex = False

    def update(self, values: Array) -> None:
        """Take in a piece: a 1-D array of any type that `has_statistics`, of either byte order.

        Packed elements come unpacked, as `workers.arrays.dtypes.unpack` returns them.
        """
        if values.dtype.itemsize == 1:
            self._kernels.accumulate_codes(values.view(np.uint8), _meanings(values.dtype), self._state)
            return
        if values.dtype.kind == "c" or values.dtype == _COMPLEX32:
            self._complex = True
            for block in _blocks(values):
                self._update_complex(_widened(block))
            return
        native = _COMPILED.get(values.dtype)
        if native == values.dtype:
            self._kernels.accumulate(values, self._state)
            return
        # Half precision and bfloat16 widen to float32 without loss. One array takes all blocks: fresh ones
        # would cost more than the arithmetic on them.
        copy = np.empty(min(values.size, BLOCK), native or values.dtype.newbyteorder("="))
        for block in _blocks(values):
            converted = copy[: block.size]
            if values.dtype == np.float16:
                self._kernels.widen_half(block, converted)
            else:
                np.copyto(converted, block)
            self._kernels.accumulate(converted, self._state)

    def result(self) -> Statistics:
        """Return the statistics of everything taken in so far."""
        return Statistics(*self.row())

    def row(self) -> tuple[float, ...]:
        """Return the same in the order of `FIELDS`, in a quarter of the time."""
        *counts, finite, low, high, mean, m2, unit, origin = self._state.tolist()
        if not finite:
            return (*counts, *[math.nan] * 5)
        mean += origin
        std = _scaled(math.sqrt(m2 / finite), unit)
        l2_norm = _scaled(math.sqrt(m2 + finite * mean * mean), unit)
        if self._complex:
            counts[FIELDS.index("positive_count")] = 0.0
            low = high = mean = std = math.nan
        else:
            mean = min(max(_scaled(mean, unit), low), high)
        return (*counts, low, high, mean, std, l2_norm)

    def _update_complex(self, block: Array) -> None:
        finite = np.isfinite(block)
        nan = np.count_nonzero(np.isnan(block))
        inf = block.size - nan - np.count_nonzero(finite)
        self._kernels.accumulate(np.abs(block[finite].astype(np.complex128)), self._state)
        self._state[self._kernels.COUNT] += nan + inf
        self._state[self._kernels.NAN] += nan
        self._state[self._kernels.POS_INF] += inf


@cache
def _kernels() -> ModuleType:
    # Here, for only who computes statistics should wait for the compiler.

    return kernels


@lru_cache(maxsize=64)
def _meanings(dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """Return the number that each of the 256 codes of a one-byte type stands for."""
    codes = np.arange(256, dtype=np.uint8)
    if dtype.kind == "b":
        codes, dtype = (codes != 0).view(np.uint8), np.dtype(np.uint8)  # any byte but 0 is true
    meanings: npt.NDArray[np.float64] = codes.view(dtype).astype(np.float64)
    return meanings


def _widened(block: Array) -> Array:
    """Return complex elements in a type that numpy calculates with."""
    if block.dtype != _COMPLEX32:
        return block
    return block.view("<f2").astype(np.float32).view(np.complex64)


def _blocks(values: Array) -> Iterator[Array]:
    for start in range(0, values.size, BLOCK):
        yield values[start : start + BLOCK]


def _scaled(value: float, unit: float) -> float:
    """Return `value * unit`, which is infinite only if it is so by more than the last digits."""
    largest = sys.float_info.max
    if unit > 1 and largest < abs(value) * unit and abs(value) <= largest / unit * (1 + 1e-12):
        return math.copysign(largest, value)
    return value * unit


def summarise(values: Array) -> Statistics:
    """Return the statistics of a 1-D array that is in memory as a whole."""
    running = RunningStatistics()
    running.update(values)
    return running.result()


@lru_cache(maxsize=256)  # asked for every tensor
def has_statistics(kind: ElementType | np.dtype[Any]) -> bool:
    """Whether elements of this type are numbers that can be summarised.

    Of opaque elements only the `ElementType` tells that they are none: their dtype is `uint8`.
    """
    if isinstance(kind, ElementType):
        return not kind.is_opaque and has_statistics(kind.values)
    # Not long double: it does not fit into float64, in which everything is accumulated.
    return kind.kind in "biu" or kind in _CODED or kind == _COMPLEX32 or kind.newbyteorder("=") in _SUMMABLE
