"""The elements of one tensor, in types that Zarr can name, and how to read no more of them than is needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.arrays import dtypes
from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType
from workers.errors import DamagedStore
from workers.model import MIB

Index: TypeAlias = int | slice

#: What is read at once where only a part of it is needed, in bytes: an inner chunk of the store.
_WASTED_NBYTES = MIB
#: What is read at once into what already takes the memory of the result.
_RUN_NBYTES = 64 * MIB


@dataclass(slots=True, eq=False)
class Elements:
    """A tensor as an array of a type that Zarr has: `dtype`, `shape`.

    What Zarr has no type for is shown like this:

    - packed integers (int4, uint4, int2, uint2, uint1) as int8 or uint8, float4_e2m1fn as float16: the same
      values, an element each;
    - complex32 as float16 with one more axis at the end, of length 2: real and imaginary part;
    - strings, structures and other types of numpy as uint8 with one more axis at the end: their bytes;
    - opaque types as uint8, a byte each.

    Everything else is shown as it is, bit for bit, also in byte order.
    """

    step: Step
    row: int
    element: ElementType = field(init=False)
    dtype: np.dtype[Any] = field(init=False)
    shape: tuple[int, ...] = field(init=False)
    axes: tuple[int, ...] = field(init=False)
    """The axes of `shape` in the order in which they lie in the store, the slowest first."""
    is_plain: bool = field(init=False)
    """Whether a part of it can be read: not where it is stored in the layout of an accelerator."""

    def __post_init__(self) -> None:
        """Look the tensor up in the index; nothing else is read.

        Raises:
            DamagedStore: the index says what cannot be.
        """
        try:
            self.element = self.step.element(self.row)
        except ValueError as exc:
            raise DamagedStore(f"{self.step.key}: row {self.row}: {exc}") from exc
        shape = self.step.shape(self.row)
        if any(length < 0 for length in shape):
            raise DamagedStore(f"{self.step.key}: row {self.row} has an impossible shape {shape}")
        self.dtype, parts = _shown(self.element)
        self.is_plain = not self.step.is_in_device_layout(self.row)
        axes = range(len(shape))
        is_fortran = self.is_plain and bool(self.step.tables.number("fortran_order")[self.row])
        self.axes = tuple(reversed(axes)) if is_fortran else tuple(axes)
        self.shape = shape
        if parts:
            self.shape, self.axes = (*shape, parts), (*self.axes, len(shape))
        if self.is_plain and self._nbytes < self.element.nbytes(math.prod(shape)):
            raise DamagedStore(f"{self.step.key}: row {self.row} has fewer bytes than its shape takes")

    def __reduce__(self) -> tuple[Any, ...]:
        # Its own row of the index goes with it, and nothing else of the step.
        return Elements, (self.step.only(self.row), 0)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def _nbytes(self) -> int:
        return int(self.step.tables.number("nbytes")[self.row])

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Lengths of the axes in the order in which they lie in the store."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """A name for each axis: one name has one length in whatever tensors are put together."""
        return tuple(f"d{axis}_{length}" for axis, length in enumerate(self.shape))

    def flat(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements `start` to `stop` in the order of the store, 1-D of `dtype`.

        Reads the inner chunks of the store that hold them; all of them where the tensor is not plain. The
        digest is checked where all elements are asked for.

        Raises:
            DamagedStore: chunks are missing or damaged, or (for all elements) the digest differs.
        """
        if not self.is_plain:
            return Tensor(self.step, self.row).read().reshape(-1).view(self.dtype)[start:stop]
        bits = self.element.bits if self.element.is_packed else 8 * self.dtype.itemsize
        first, last = start * bits // 8, -(-stop * bits // 8)
        payload = self.step.read(self.row, first, last)
        is_whole = first == 0 and last == self._nbytes
        if is_whole and digest(payload) != self.step.tables.digest[self.row].tobytes():
            raise DamagedStore(f"{self.step.key}: row {self.row}: the digest does not match")
        if not self.element.is_packed:
            return np.frombuffer(payload, self.dtype)
        skipped = start - first * 8 // bits
        return dtypes.unpack(payload, self.element, skipped + stop - start)[skipped:].astype(self.dtype)

    def take(self, key: Sequence[Index]) -> npt.NDArray[Any]:
        """Return what numpy would return for `array[key]`: one integer or slice for each axis.

        Reads what lies between the first and the last element that is wanted, but leaves out stretches of
        more than 1 MiB. Memory: the result, and 64 MiB.

        Raises:
            DamagedStore: chunks are missing or damaged.
        """
        ranges = [_range(one, length) for one, length in zip(key, self.shape, strict=True)]
        ascending = [wanted if wanted.step > 0 else wanted[::-1] for wanted in ranges]
        out = np.empty([len(ascending[axis]) for axis in self.axes], self.dtype)
        if out.size:
            self._fill(out, [ascending[axis] for axis in self.axes])
        places = [self.axes.index(axis) for axis in range(len(self.axes))]
        final = tuple(
            0 if isinstance(one, int) else slice(None, None, 1 if wanted.step > 0 else -1)
            for one, wanted in zip(key, ranges, strict=True)
        )
        found: npt.NDArray[Any] = out.transpose(places)[final]
        return found

    def _fill(self, out: npt.NDArray[Any], wanted: list[range]) -> None:
        """Read the places `wanted` of each axis, in the order of the store, into `out`."""
        shape = self.stored_shape
        if not shape or not self.is_plain:
            whole = self.flat(0, self.size).reshape(shape)
            out[...] = whole[tuple(slice(r.start, r.stop, r.step) for r in wanted)]
            return
        axis = self._axis_to_read(wanted)
        row = math.prod(shape[axis + 1 :])
        along, inner = wanted[axis], tuple(slice(r.start, r.stop, r.step) for r in wanted[axis + 1 :])
        rows = max(_RUN_NBYTES // max(row * self.dtype.itemsize, 1), 1)
        for number, place in enumerate(itertools.product(*wanted[:axis])):
            base = 0
            for at, length in zip((*place, 0), shape[: axis + 1], strict=True):
                base = base * length + at
            target = out.reshape(-1, *out.shape[axis:])[number]
            for part in range(0, len(along), max(rows // along.step, 1)):
                here = along[part : part + max(rows // along.step, 1)]
                read = self.flat((base + here[0]) * row, (base + here[-1] + 1) * row)
                read = read.reshape(-1, *shape[axis + 1 :])
                target[part : part + len(here)] = read[(slice(None, None, along.step), *inner)]

    def _axis_to_read(self, wanted: list[range]) -> int:
        """Return the axis along which runs are read, one for each place of the axes before it."""
        shape = self.stored_shape
        for axis, along in enumerate(wanted):
            rest = zip(wanted[axis + 1 :], shape[axis + 1 :], strict=True)
            if along.step == 1 and all(len(r) == length for r, length in rest):
                return axis  # nothing but what is wanted
            if math.prod(shape[axis + 1 :]) * along.step * self.dtype.itemsize <= _WASTED_NBYTES:
                return axis
        return len(shape) - 1


def chunk_shape(elements: Elements, nbytes: int) -> tuple[int, ...]:
    """Return how to cut a tensor along its slowest axis, in pieces of about `nbytes`.

    Every piece is one stretch of the store. What is not plain is one piece.

    Returns:
        The lengths of a piece, axes in the order of the store.
    """
    shape = elements.stored_shape
    chunk = [max(length, 1) for length in shape]
    if not elements.is_plain:
        return tuple(chunk)
    for axis, length in enumerate(shape):
        row = math.prod(chunk[axis + 1 :]) * elements.dtype.itemsize
        if row <= nbytes:
            pieces = -(-length // max(nbytes // row, 1))
            chunk[axis] = max(-(-length // max(pieces, 1)), 1)
            break
        chunk[axis] = 1
    return tuple(chunk)


def _shown(element: ElementType) -> tuple[np.dtype[Any], int]:
    """Return the type by which elements are shown, and how many make one; 0 where that needs no axis."""
    if element.is_packed:
        if element.name.startswith("float"):
            return np.dtype(np.float16), 0
        return np.dtype(np.uint8 if element.name.startswith("u") else np.int8), 0
    dtype = element.to_numpy()
    if element.is_native:
        return dtype, 0
    if element.name == "complex32":
        return np.dtype("<f2"), 2
    if dtype.kind in "biufc" and dtypes.from_name(dtype.name).is_native:
        return dtype, 0  # in a byte order that others cannot read, or an opaque one
    return np.dtype(np.uint8), dtype.itemsize


def _range(one: Index, length: int) -> range:
    if isinstance(one, slice):
        return range(length)[one]
    place = range(length)[one]
    return range(place, place + 1)
