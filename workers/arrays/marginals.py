"""Marginals of a tensor: sum, L2 norm and largest magnitude of each position along an axis.

The marginal of an axis says of each position, over all elements there, what the statistics say of the whole
tensor: of each row and of each column of a matrix, of each channel. Sums and squares of parts add up.

Marginals are kept of axes of at least two positions, the shortest first (of equally long ones, the last), as
long as all of them take at most a fiftieth of the bytes of the payload, and `MAX_NBYTES`.

From them follows which positions stand out, are dead, or are saturated. A position stands out if its measure,
the largest magnitude or the L2 norm, is more than a factor times the median of that measure over the
positions that are not dead. It is dead if all of its finite elements are zero, and saturated if all of its
elements have nearly the same magnitude: as units behind a sigmoid or a tanh have where the function is flat.
Largest magnitudes are exact; norms are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Self, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import kernels
from workers.arrays.compiled import marginal_loops as loops
from workers.arrays.dtypes import ElementType

#: Tensors of fewer elements have none: what is done once for each tensor would take longer than the pass.
LEAST_ELEMENTS: Final = 4096
#: Tensors of at least this many elements are large. They take most of the bytes of large models, and few are
#: so small that what is done once for each of them counts.
LARGE_ELEMENTS: Final = 256 * 1024


class MarginalScope(StrEnum):
    """The tensors of which marginals are kept."""

    NONE = "none"
    LARGE = "large"
    ALL = "all"

    def includes(self, elements: float) -> bool:
        """Return whether a tensor with this number of elements may have marginals."""
        if self is MarginalScope.NONE:
            return False
        return elements >= (LARGE_ELEMENTS if self is MarginalScope.LARGE else LEAST_ELEMENTS)


Values: TypeAlias = npt.NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]

#: What is kept of each position, in the order in which it is stored, float32.
FIELDS: Final = ("sum", "l2_norm", "abs_max")
#: The most bytes that the marginals of a tensor take before compression, in parts of its payload and at all.
SHARE, MAX_NBYTES = 50, 1024 * 1024
#: The last axes are joined into columns until there are this many, so that a loop over a row pays off. Fewer
#: are joined if adding up the columns along these axes would cost more than that saves.
_LEAST_WIDTH, _GOOD_WIDTH, _LEAST_ROWS = 16, 128, 8
_POSITION_NBYTES: Final = 4 * len(FIELDS)
_FLOATS = frozenset(np.dtype(code) for code in ("f2", "f4", "f8", ml_dtypes.bfloat16))


@dataclass(frozen=True, slots=True, eq=False)
class Marginal:
    """The marginal of one axis: what is known of each position, over its finite elements.

    All arrays are (position,) of float32.

    Sums are rounded to float32 (relative 6e-8), and added up in float64 in any order. `abs_max` is exact for
    types of up to 32 bits.
    """

    sum: Values
    l2_norm: Values
    """The square root of the sum of squares."""
    abs_max: Values

    @property
    def table(self) -> Values:
        """All of it as it is stored, (field, position)."""
        return np.stack([self.sum, self.l2_norm, self.abs_max])

    def agrees_with(self, other: Marginal) -> bool:
        """Return whether another one is the same but for the order of summation.

        Where elements cancel, the rest of a sum depends on that order: the norm gives its scale.
        """
        scale = 1e-5 * np.maximum(self.l2_norm, other.l2_norm).astype(np.float64)
        return bool(
            np.array_equal(self.abs_max, other.abs_max)
            and np.allclose(self.l2_norm, other.l2_norm, rtol=1e-5, atol=0)
            and (np.abs(self.sum.astype(np.float64) - other.sum) <= scale).all()
        )

    def differs_from(self, other: Marginal, elements: int) -> npt.NDArray[np.bool_]:
        """Return at which positions there are other elements than in a tensor of the same shape, (position,).

        They certainly are where it is true. Elsewhere they may differ by less than can be seen: sums are
        rounded to float32, and their last bits depend on the order in which `elements` were added up at each
        position. The latter is at most `elements * 2**-53` of the sum of magnitudes, which is at most the
        norm times the square root of `elements`.
        """
        norm = np.maximum(self.l2_norm, other.l2_norm).astype(np.float64)
        order = elements * 2.0**-52 * math.sqrt(elements) * norm
        rounding = 2.0**-23 * np.maximum(np.abs(self.sum), np.abs(other.sum)).astype(np.float64)
        return np.asarray(
            (self.abs_max != other.abs_max)
            | (np.abs(self.l2_norm.astype(np.float64) - other.l2_norm) > 2.0**-22 * norm)
            | (np.abs(self.sum.astype(np.float64) - other.sum) > order + rounding)
        )

    @classmethod
    def added(cls, parts: Iterable[Marginal]) -> Self:
        """Return the marginal of tensors of one shape, joined along another axis: of all shards, for one.

        Raises:
            ValueError: they do not have equally many positions.
        """
        members = list(parts)
        total = np.sum([part.sum for part in members], axis=0, dtype=np.float64)
        square = np.sum([np.square(part.l2_norm, dtype=np.float64) for part in members], axis=0)
        largest = np.max([part.abs_max for part in members], axis=0)
        return cls(
            np.asarray(total, np.float32), np.asarray(np.sqrt(square), np.float32), np.asarray(largest)
        )


@dataclass(frozen=True, slots=True, eq=False)
class MarginalTable:
    """The marginals of the axes of one tensor, one after the other."""

    axes: tuple[tuple[int, int], ...]
    """Axes of the tensor, in order, and their lengths."""
    values: Values
    """(field, position): the positions of the first axis, then those of the others."""

    def by_axis(self) -> dict[int, Marginal]:
        """Return the marginal of each axis."""
        ends = np.cumsum([length for _, length in self.axes]).tolist()
        return {
            axis: Marginal(*self.values[:, end - length : end])
            for (axis, length), end in zip(self.axes, ends, strict=True)
        }

    def mirrored(self, ndim: int) -> MarginalTable:
        """Return the same of the transposed tensor of `ndim` axes."""
        by_axis = {ndim - 1 - axis: marginal for axis, marginal in self.by_axis().items()}
        ordered = sorted(by_axis)
        lengths = tuple((axis, by_axis[axis].sum.size) for axis in ordered)
        return MarginalTable(lengths, np.concatenate([by_axis[axis].table for axis in ordered], axis=1))


NO_MARGINALS = MarginalTable((), np.zeros((len(FIELDS), 0), np.float32))


def has_marginals(element: ElementType) -> bool:
    """Return whether tensors of this type may have marginals: floats of 16, 32 and 64 bits."""
    return element.values.newbyteorder("=") in _FLOATS


@lru_cache(maxsize=4096)
def kept_axes(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """Return the axes of which a tensor keeps marginals, in order; none if they would take too much."""
    size = math.prod(shape)
    if size < LEAST_ELEMENTS:
        return ()
    left = min(size * itemsize // SHARE, MAX_NBYTES)
    kept = []
    for axis in sorted(range(len(shape)), key=lambda axis: (shape[axis], -axis)):
        nbytes = shape[axis] * _POSITION_NBYTES
        if shape[axis] < 2:
            continue
        if nbytes > left:
            break
        left -= nbytes
        kept.append(axis)
    return tuple(sorted(kept))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How a tensor is cut into rows and columns; many tensors share it."""

    places: npt.NDArray[np.int64]
    """(PLAN_FIELDS,): see `marginal_loops.WIDTH`."""
    address: int
    memory_size: int
    """How many numbers the loops need memory for."""
    axes: tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def _plan(shape: Shape, axes: tuple[int, ...]) -> _Plan:
    cut, width, size = len(shape), 1, math.prod(shape)
    while cut and width < _GOOD_WIDTH:
        if width >= _LEAST_WIDTH and width * shape[cut - 1] * _LEAST_ROWS > size:
            break
        cut -= 1
        width *= shape[cut]
    begins, wanted = {}, 0
    for axis in axes:
        begins[axis] = wanted
        wanted += shape[axis]
    leading = _told_apart([(shape[axis], begins.get(axis, -1)) for axis in range(cut)])
    inner = _told_apart([(shape[axis], begins.get(axis, -1)) for axis in range(cut, len(shape))])
    columns, total = -1, wanted
    if len(inner) == 1 and inner[0][1] >= 0:
        columns, inner = inner[0][1], []
    elif any(begin >= 0 for _, begin in inner):
        columns, total = wanted, wanted + width
    else:
        inner = []
    has_rows = any(begin >= 0 for _, begin in leading)
    places = np.zeros(loops.PLAN_FIELDS, np.int64)
    places[: loops.FIRST_AXIS] = width, columns, has_rows, len(leading), len(inner), total, wanted, 0
    for number, (length, begin) in enumerate((*leading, *inner)):
        own = loops.FIRST_AXIS + 3 * number
        places[own : own + 2] = length, begin
    lengths = tuple((axis, shape[axis]) for axis in axes)
    return _Plan(places, kernels.address(places), loops.PLAN_FIELDS + 3 * total, lengths)


def _told_apart(axes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return axes as lengths and places, without those of one position; unwanted neighbours are one."""
    kept: list[tuple[int, int]] = []
    for length, begin in axes:
        if begin < 0 and kept and kept[-1][1] < 0:
            kept[-1] = kept[-1][0] * length, -1
        elif length > 1 or begin >= 0:
            kept.append((length, begin))
    return kept


#: Memory that nobody uses, and its address: what is done once for each tensor counts.
_spare_sums: list[tuple[npt.NDArray[np.int64], int]] = []
#: Numbers in a piece of memory that is kept: at least, and at most.
_LEAST_SPARE, _MOST_SPARE = 16 * 1024, 64 * 1024


def _take_memory(size: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return memory of at least `size` numbers, of any values, and its address."""
    try:
        memory, place = _spare_sums.pop()
    except IndexError:
        memory, place = np.empty(0, np.int64), 0
    if memory.size < size:
        memory = np.empty(max(size, _LEAST_SPARE), np.int64)
        return memory, kernels.address(memory)
    return memory, place


class RunningMarginals:
    """The marginals of a tensor whose elements arrive in pieces, in the order of the payload."""

    def __init__(self, plan: _Plan, itemsize: int, ndim: int = 0) -> None:
        """Begin with no elements. With `ndim`, the plan has those axes in reverse order.

        Args:
            plan: how the tensor is cut.
            itemsize: that of the pieces, 4 or 8.
            ndim: how many axes the tensor has.
        """
        self._plan, self._itemsize, self._ndim = plan, itemsize, ndim
        self._memory, self._address = _take_memory(plan.memory_size)
        self._added = 0

    def update(self, values: npt.NDArray[Any], *, finite: bool) -> None:
        """Add a piece: 1-D and contiguous, float32 or float64 in native byte order; at least one element.

        `finite` says whether all elements are finite; those that are not do not count.
        """
        if not finite:
            values = np.where(np.isfinite(values), values, values.dtype.type(0))
        entry = kernels.entries()[_ADD[self._itemsize]]
        entry(kernels.address(values), values.size, self._plan.address, self._address, self._added)
        self._added += values.size

    def result(self) -> MarginalTable:
        """Return the marginals of all pieces; `NO_MARGINALS` if all elements are zeros. Call it once."""
        if self._added == 0:
            return NO_MARGINALS
        out = np.empty((len(FIELDS), int(self._plan.places[loops.WANTED])), np.float32)
        kernels.entries()[_WRITE[self._itemsize]](self._address, kernels.address(out))
        memory = self._memory
        has_nonzero = memory[loops.HAS_NONZERO] != 0
        del self._memory  # the next tensor uses it
        if memory.size <= _MOST_SPARE:
            _spare_sums.append((memory, self._address))
        if not has_nonzero:
            return NO_MARGINALS
        made = MarginalTable(self._plan.axes, out)
        return made.mirrored(self._ndim) if self._ndim else made


#: The entries by size of the elements.
_ADD = {size: f"marginals_f{size}" for size in (4, 8)}
_WRITE = {size: f"marginals_table_f{size}" for size in (4, 8)}


def running_marginals(
    element: ElementType,
    shape: Shape,
    *,
    fortran_order: bool = False,
    scope: MarginalScope = MarginalScope.ALL,
) -> RunningMarginals | None:
    """Return an accumulator for the marginals of a tensor; None if none are kept of it.

    Its pieces come as `RunningStatistics` widens them, in the order of the payload.
    """
    if not scope.includes(math.prod(shape)):  # most tensors: asked before anything that is looked up
        return None
    plan = _kept_plan(element, shape[::-1] if fortran_order else shape)
    if plan is None:
        return None
    return RunningMarginals(plan, max(element.itemsize, 4), len(shape) if fortran_order else 0)


@lru_cache(maxsize=4096)
def _kept_plan(element: ElementType, shape: Shape) -> _Plan | None:
    axes = kept_axes(shape, element.itemsize) if has_marginals(element) else ()
    return _plan(shape, axes) if axes else None


def marginals_of(values: npt.NDArray[Any], axes: Sequence[int] | None = None) -> dict[int, Marginal]:
    """Return the marginals of a whole tensor; `axes` are those that are kept unless they are given."""
    wide = values.astype(values.dtype if values.dtype in ("f4", "f8") else np.float32, order="C", copy=False)
    chosen = kept_axes(values.shape, values.dtype.itemsize) if axes is None else tuple(axes)
    running = RunningMarginals(_plan(values.shape, chosen), wide.dtype.itemsize)
    running.update(wide.reshape(-1), finite=bool(np.isfinite(wide).all()))
    return running.result().by_axis()


#: What positions are compared by.
ABS_MAX, L2_NORM = MEASURES = ("abs_max", "l2_norm")
DEFAULT_FACTOR: Final = 10.0
#: With fewer positions that are not dead, a median says little.
LEAST_POSITIONS: Final = 8
#: With fewer elements, equal magnitudes say little.
LEAST_OF_POSITION: Final = 16
#: A position is saturated if its root mean square is at least this share of its largest magnitude.
_SATURATED = 0.999
#: The range of float32 in which numbers are rounded by a share of themselves.
_SMALLEST_NORMAL, _LARGEST = 2.0**-126, float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """What is odd among the positions of one axis."""

    values: npt.NDArray[np.float64]
    """(position,): what they are compared by."""
    median: float
    """Of those that are not dead; NaN if there are fewer than `LEAST_POSITIONS`."""
    outlying: npt.NDArray[np.int64]
    """The positions that stand out, in order."""
    dead: npt.NDArray[np.int64]
    """In order."""
    saturated: npt.NDArray[np.int64]
    """In order; none if all positions are."""


def channels_of(
    marginal: Marginal, elements: int, *, by: str = ABS_MAX, factor: float = DEFAULT_FACTOR
) -> Channels:
    """Return the odd positions along an axis.

    Args:
        marginal: the marginal of the axis.
        elements: how many elements each position has.
        by: one of `MEASURES`.
        factor: how many times the median an outlier exceeds.
    """
    values = (marginal.abs_max if by == ABS_MAX else marginal.l2_norm).astype(np.float64)
    is_alive = marginal.abs_max > 0
    alive = int(is_alive.sum())
    median = float(np.median(values[is_alive])) if alive >= LEAST_POSITIONS else float("nan")
    with np.errstate(invalid="ignore"):
        outlying = np.flatnonzero(values > factor * median)
    nothing = np.zeros(0, np.int64)
    dead = np.flatnonzero(~is_alive) if is_alive.size >= LEAST_POSITIONS else nothing
    saturated = nothing
    if elements >= LEAST_OF_POSITION and is_alive.size >= LEAST_POSITIONS:
        largest = marginal.abs_max.astype(np.float64)
        root_mean_square = marginal.l2_norm / np.sqrt(elements)
        mask = is_alive & (root_mean_square >= _SATURATED * largest)
        saturated = nothing if mask.all() else np.flatnonzero(mask)
    return Channels(values, median, outlying, dead, saturated)


def relative_error(measure: str, value: float, elements: int, *, is_rounded: bool) -> float:
    """Return how far a measure of a position may be from the truth, as a share of it; 0 if it is exact.

    Magnitudes are exact unless float32 rounds them, by 2**-24 at most. A norm is rounded, too, and comes
    from a sum of squares in float64, in any order, whose error is at most `elements * 2**-53` of it. At the
    ends of the range of float32, where marginals are cut off, nothing is known: infinity.

    Args:
        measure: one of `MEASURES`.
        value: the measure.
        elements: how many elements the position has.
        is_rounded: whether elements of this type are wider than float32.
    """
    if measure == ABS_MAX and not is_rounded:
        return 0.0
    if not _SMALLEST_NORMAL <= value < _LARGEST:
        return math.inf
    return 2.0**-24 + (elements * 2.0**-53 if measure == L2_NORM else 0.0)
