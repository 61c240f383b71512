"""By how much two tensors differ, in one pass and bounded memory.

B is the reference, like the "bench" of msProbe. Everything is computed in float64 after widening. Sums are
added up block by block, so the result does not depend on how tensors were cut into pieces, except for the
last digits.

The definitions are those of msProbe (Ascend/mstt, `msprobe/core/compare/npy_compare.py`) where it has one:

- maximum absolute error: max |a - b|;
- relative error of an element: |a - b| / |b|. If b is 0, it is 0 for a = 0 and else |a| / 2**-52: msProbe
  adds the epsilon of float64 to both. Its maximum and mean are reported;
- shares within 1 and 5 per mille: elements whose relative error is less than 0.001 and 0.005, divided by all
  elements ("one thousandth err ratio", "five thousandths err ratio");
- cosine: a.b / (|a| |b|); 1 if both are all zeros, undefined (NaN) if one is;
- relative Euclidean distance: |a - b| / |b|, as msit's `RelativeEuclideanDistance`; 0 if nothing differs,
  infinite if only b is all zeros.

In addition: the root of the mean square of a - b, and the ratio |a| / |b| of the norms (1 if both are zero).

NaN in both at one place, and infinities of the same sign, are equal: they count as elements without an
error, as in msProbe, and add nothing to sums. If only one is NaN, or the infinities differ, the mismatch is
counted, and the element is in no sum and within no share; msProbe gives up on the whole tensor then.

Complex elements: errors and norms are of the modulus, the product in the cosine is the real part of a
times the conjugate of b. An element with NaN in either part is NaN, else with infinity in either part
infinite; two of these are equal if both of their parts are.

Two empty tensors have no error; shares, cosine and ratio are 1. They are equal if their types are. If no
element is left to be compared, everything except the shares and counts is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import comparison_loops, kernels
from workers.arrays.compiled.comparison_loops import PLACES
from workers.arrays.dtypes import ElementType
from workers.arrays.statistics import has_statistics, is_complex, widened_complex


def accumulate(
    a: npt.NDArray[Any], b: npt.NDArray[Any], state: npt.NDArray[np.float64], scratch: npt.NDArray[np.float64]
) -> int:
    """Add pairs of elements to `state`; return the number of pairs that were added.

    If it is less than the number of elements, squares of some of the next `BLOCK` elements overflow or vanish
    in float64, and none of that block was added.

    Args:
        a: 1-D and contiguous, float32 or float64 in native byte order.
        b: the same.
        state: (len(PLACES),); begins with zeros.
        scratch: (4, BLOCK); overwritten.
    """
    places = [kernels.address(array) for array in (a, b, state, scratch)]
    kernels.entries()[f"compare_f{a.itemsize}_f{b.itemsize}"](*places, a.size)
    return int(scratch.view(np.int64)[0, 0])


Array: TypeAlias = npt.NDArray[Any]

#: Elements that are widened and compared at a time: the block, its counterpart and what is computed from both
#: stay in the L2 cache.
BLOCK = 16 * 1024
#: Elements that are compared first, to see whether two tensors have the same bytes.
_FIRST = 256
#: From this number of elements on, compiled loops are worth loading: below, numpy takes half a millisecond.
_COMPILED_SIZE = 32 * 1024
#: What msProbe divides by if the reference is 0.
_EPSILON = float(np.finfo(np.float64).eps)
#: Squares of float64 elements larger than the first of these, or smaller than the second, overflow or vanish:
#: sums are then kept in a unit that is a power of two, so that nothing is rounded.
_LARGE, _SMALL = 2.0**480, 2.0**-480
_HUGE_UNIT, _TINY_UNIT = 2.0**600, 2.0**-600
_NATIVE = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
_BIG_ENDIAN_FLOAT32 = np.dtype(">f4")


@dataclass(frozen=True, slots=True)
class Metrics:
    """By how much a tensor A differs from its reference B; see the module for the definitions."""

    count: int
    unequal: int
    """Elements that differ as numbers: 0.0 and -0.0 are equal, and so are two NaN."""
    nan_mismatch: int
    """Elements that are NaN in only one of the two."""
    inf_mismatch: int
    """Elements that are infinite in only one of the two, or with different signs."""
    bit_equal: bool
    """Whether the type and the bytes of all elements are the same."""
    max_abs: float
    max_relative: float
    mean_relative: float
    rmse: float
    cosine: float
    relative_euclidean: float
    within_1_per_mille: float
    within_5_per_mille: float
    norm_ratio: float


#: The names of the metrics in thresholds and JSON.
METRICS: tuple[str, ...] = tuple(field.name for field in fields(Metrics))


def no_difference(count: int) -> Metrics:
    """Return the metrics of two tensors with the same bytes, whatever they hold."""
    return Metrics(count, 0, 0, 0, True, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0)  # noqa: FBT003


def is_numeric(element: ElementType) -> bool:
    """Return whether elements of a type are numbers. Others can only be compared by their bytes."""
    return has_statistics(element) or (not element.is_opaque and element.values.kind in "fc")


def is_real(element: ElementType) -> bool:
    """Return whether elements of a type are real numbers, which float64 holds, or nearly."""
    return is_numeric(element) and not is_complex(element.values)


class RunningComparison:
    """The comparison of two tensors that arrive in pieces, each piece with the same elements of both.

    It takes memory for some blocks. Threads must not share one.
    """

    def __init__(self) -> None:
        self._count = self._unequal = self._nan = self._inf = 0
        self._within_1 = self._within_5 = 0
        self._bit_equal = True
        self._is_numeric = True
        self._max_abs = self._max_relative = self._relative = 0.0
        # In `_unit` squared.
        self._aa = self._bb = self._ab = self._dd = 0.0
        self._unit = 0.0
        """0 before anything was summed."""
        self._scratch: npt.NDArray[np.float64] | None = None
        """For the compiled loops; None as long as they were not used."""

    def update(self, a: Array, b: Array) -> None:
        """Add a piece of both: 1-D arrays of one length, of any types that are numbers."""
        if a.size != b.size:
            raise ValueError(f"{a.size} elements against {b.size}")
        self._update_bit_equal(a, b)
        are_integers = a.dtype.kind in "iu" and b.dtype.kind in "iu"
        if are_integers and max(a.itemsize, b.itemsize) == 8:
            for left, right in _blocks(a, b):
                self._add(_widened(left), _widened(right), _distance(left, right))
        elif self._can_be_compiled(a, b):
            self._update_compiled(a, b)
        else:
            for left, right in _blocks(a, b):
                self._add(_widened(left), _widened(right), None)

    def _can_be_compiled(self, a: Array, b: Array) -> bool:
        is_worthwhile = self._scratch is not None or a.size >= _COMPILED_SIZE
        return is_worthwhile and not is_complex(a.dtype) and not is_complex(b.dtype)

    def _update_compiled(self, a: Array, b: Array) -> None:
        if self._scratch is None:
            self._scratch = np.empty((4, comparison_loops.BLOCK))
        state = np.zeros(len(PLACES))
        as_they_are = _is_as_compiled(a) and _is_as_compiled(b)
        # Contiguous pieces: what is widened stays in the cache until it is compared.
        length = a.size if as_they_are else BLOCK
        for start in range(0, a.size, max(length, 1)):
            left, right = (_narrowly_widened(side[start : start + length]) for side in (a, b))
            added = 0
            while added < left.size:
                added += accumulate(left[added:], right[added:], state, self._scratch)
                if added < left.size:
                    rest = slice(added, added + comparison_loops.BLOCK)
                    self._add(_widened(left[rest]), _widened(right[rest]), None)
                    self._count -= left[rest].size
                    added += left[rest].size
            self._count += left.size
        self._add_state(state)

    def _add_state(self, state: npt.NDArray[np.float64]) -> None:
        at = comparison_loops
        self._nan += int(state[at.NAN])
        self._inf += int(state[at.INF])
        self._unequal += int(state[at.UNEQUAL])
        self._within_1 += int(state[at.WITHIN_1])
        self._within_5 += int(state[at.WITHIN_5])
        self._max_abs = max(self._max_abs, float(state[at.MAX_ABS]))
        self._max_relative = max(self._max_relative, float(state[at.MAX_RELATIVE]))
        self._relative += float(state[at.RELATIVE])
        if not state[at.AA] and not state[at.BB]:
            return  # only zeros, or numpy has added everything: no reason to give up a small unit
        self._grow(1.0)
        ratio = 1.0 / self._unit
        for name, place in (("_aa", at.AA), ("_bb", at.BB), ("_ab", at.AB), ("_dd", at.DD)):
            setattr(self, name, getattr(self, name) + float(state[place]) * ratio * ratio)

    def update_opaque(self, a: Array, b: Array) -> None:
        """Add a piece of both whose elements are not numbers: arrays of bytes, shape (element, byte)."""
        self._is_numeric = False
        different = int(np.count_nonzero((a != b).any(axis=1)))
        self._count += len(a)
        self._unequal += different
        self._bit_equal &= not different

    def result(self) -> Metrics:
        """Return the metrics of all pieces so far."""
        if self._bit_equal:
            return no_difference(self._count)
        if not self._count:
            return replace(no_difference(0), bit_equal=False)
        if not self._is_numeric:
            return Metrics(self._count, self._unequal, 0, 0, False, *[math.nan] * 9)  # noqa: FBT003
        compared = self._count - self._nan - self._inf
        errors = (math.nan,) * 7
        if compared:
            norm_a, norm_b, distance = math.sqrt(self._aa), math.sqrt(self._bb), math.sqrt(self._dd)
            errors = (
                self._max_abs,
                self._max_relative,
                self._relative / compared,
                distance / math.sqrt(compared) * self._unit,
                _cosine(self._ab, norm_a, norm_b),
                _ratio(distance, norm_b, 0.0),
                _ratio(norm_a, norm_b, 1.0),
            )
        max_abs, max_relative, mean_relative, rmse, cosine, relative_euclidean, norm_ratio = errors
        return Metrics(
            self._count,
            self._unequal,
            self._nan,
            self._inf,
            False,  # noqa: FBT003
            max_abs,
            max_relative,
            mean_relative,
            rmse,
            cosine,
            relative_euclidean,
            self._within_1 / self._count,
            self._within_5 / self._count,
            norm_ratio,
        )

    def _update_bit_equal(self, a: Array, b: Array) -> None:
        self._bit_equal &= a.dtype == b.dtype
        # Most tensors that differ do so from the beginning: this does not read the rest of them.
        for left, right in chain([(a[:_FIRST], b[:_FIRST])], _blocks(a[_FIRST:], b[_FIRST:])):
            if not self._bit_equal:
                break
            self._bit_equal = _bits(left).tobytes() == _bits(right).tobytes()

    def _add(self, a: Array, b: Array, distance: Array | None) -> None:
        """Add widened elements; `distance` is |a - b| if their difference would be rounded."""
        self._count += a.size
        with np.errstate(all="ignore"):
            # Sums of finite elements are infinite only for float64, for which `_add_finite` has a unit.
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                self._add_special(a[~finite], b[~finite])
                a, b = a[finite], b[finite]
            if a.size:
                self._add_finite(a, b, distance)

    def _add_special(self, a: Array, b: Array) -> None:
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        same = _same(a, b)
        odd_nan = int(np.count_nonzero((nan_a != nan_b) & ~same))
        odd_inf = int(np.count_nonzero(~same)) - odd_nan
        self._nan += odd_nan
        self._inf += odd_inf
        self._unequal += odd_nan + odd_inf
        equal = a.size - odd_nan - odd_inf
        self._within_1 += equal
        self._within_5 += equal

    def _add_finite(self, a: Array, b: Array, distance: Array | None) -> None:
        size_a, size_b = np.abs(a), np.abs(b)
        error = np.abs(a - b) if distance is None else distance
        self._unequal += int(np.count_nonzero(error))
        self._max_abs = max(self._max_abs, float(error.max()))
        relative = np.divide(error, size_b)
        if not size_b.all():
            zero = size_b == 0
            relative[zero] = size_a[zero] / _EPSILON
        self._grow(_unit_for(max(float(size_a.max()), float(size_b.max()))))
        if self._unit != 1.0:
            infinite = ~np.isfinite(error)
            a, b = a / self._unit, b / self._unit
            size_a, size_b, error = np.abs(a), np.abs(b), np.abs(a - b)
            relative[infinite] = error[infinite] / size_b[infinite]
        self._max_relative = max(self._max_relative, float(relative.max()))
        self._relative += float(relative.sum())
        self._within_1 += int(np.count_nonzero(relative < 0.001))
        self._within_5 += int(np.count_nonzero(relative < 0.005))
        self._aa += _dot(size_a, size_a)
        self._bb += _dot(size_b, size_b)
        self._dd += _dot(error, error)
        self._ab += _dot(b.conj(), a)

    def _grow(self, unit: float) -> None:
        if unit > self._unit:
            ratio = self._unit / unit
            for name in _SUMS:
                # Twice, because the square of the ratio may vanish although the product does not.
                setattr(self, name, getattr(self, name) * ratio * ratio)
            self._unit = unit


_SUMS = ("_aa", "_bb", "_ab", "_dd")


def _dot(x: Array, y: Array) -> float:
    # `np.dot` would leave the threads of BLAS spinning for a while after each call, in everybody's way.
    return float(np.einsum("i,i", x, y).real)


def _unit_for(largest: float) -> float:
    if _SMALL <= largest <= _LARGE or largest == 0:
        return 1.0 if largest else _TINY_UNIT
    return _HUGE_UNIT if largest > _LARGE else _TINY_UNIT


def _cosine(product: float, norm_a: float, norm_b: float) -> float:
    if not norm_a or not norm_b:
        return 1.0 if norm_a == norm_b else math.nan
    # One after the other, because the product of the norms could vanish.
    return min(max(product / norm_a / norm_b, -1.0), 1.0)


def _ratio(numerator: float, denominator: float, of_zeros: float) -> float:
    if denominator:
        return numerator / denominator
    return math.inf if numerator else of_zeros


def _blocks(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    for start in range(0, a.size, BLOCK):
        yield a[start : start + BLOCK], b[start : start + BLOCK]


def _widened(values: Array) -> Array:
    with np.errstate(all="ignore"):
        return widened_complex(values).astype(np.complex128 if is_complex(values.dtype) else np.float64)


def _is_as_compiled(values: Array) -> bool:
    return values.dtype in _NATIVE and values.flags.c_contiguous


def _narrowly_widened(values: Array) -> Array:
    """Return elements that are not complex as float32 if that is exact, else as float64; contiguous."""
    dtype = values.dtype
    if dtype in _NATIVE:
        return np.ascontiguousarray(values)
    is_narrow = dtype.itemsize <= 2 or dtype == _BIG_ENDIAN_FLOAT32
    with np.errstate(all="ignore"):
        return values.astype(np.float32 if is_narrow else np.float64, order="C")


def _distance(a: Array, b: Array) -> Array:
    """Return |a - b| of 64-bit integers. In float64, neighbours beyond 2**53 would be the same number."""
    above = a > b
    unsigned_a, unsigned_b = a.astype(np.uint64), b.astype(np.uint64)
    # Exact, because the absolute difference of 64-bit integers fits into 64 bits without a sign.
    distance = np.where(above, unsigned_a - unsigned_b, unsigned_b - unsigned_a).astype(np.float64)
    if a.dtype.kind == b.dtype.kind:
        return distance
    # If one is negative and the other has no sign, the distance may not fit; float64 tells these two apart.
    return np.where((a < 0) | (b < 0), np.abs(_widened(a) - _widened(b)), distance)


def _same(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements that are the same number, infinity or NaN, in both parts if complex."""
    if a.dtype.kind != "c" and b.dtype.kind != "c":
        return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
    a, b = a.astype(np.complex128), b.astype(np.complex128)
    return _same(a.real, b.real) & _same(a.imag, b.imag)


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8)
