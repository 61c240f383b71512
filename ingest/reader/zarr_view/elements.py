"""The elements of one tensor, in types that Zarr has, and how to read only the needed ones."""

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
from workers.model import MIB, ceil_div

Index: TypeAlias = int | slice

#: Up to this distance between needed elements, in bytes, the elements between them are read as well. It is
#: the size of an inner chunk of the store.
_WASTED_NBYTES = MIB
#: The bytes that are read at once, in addition to the memory of the result.
_RUN_NBYTES = 64 * MIB


@dataclass(slots=True, eq=False)
class ViewElements:
    """A tensor as an array of a type that Zarr has: `dtype`, `shape`.

    Types that Zarr does not have are shown as follows:

    - packed integers (int4, uint4, int2, uint2, uint1) as int8 or uint8, and float4_e2m1fn as float16, with
      the same values;
    - complex32 as float16 with another axis of length 2 at the end: real and imaginary part;
    - strings, structures and other types of numpy as uint8 with another axis at the end: their bytes;
    - opaque types as uint8, with a byte for each element.

    All other types are shown bit for bit, in the byte order of the dump.
    """

    step: Step
    row: int
    element: ElementType = field(init=False)
    dtype: np.dtype[Any] = field(init=False)
    shape: tuple[int, ...] = field(init=False)
    axes: tuple[int, ...] = field(init=False)
    """The axes of `shape` in the order of the store, the slowest first."""
    is_plain: bool = field(init=False)
    """Whether parts of it can be read; false if it is stored in the layout of an accelerator."""

    def __post_init__(self) -> None:
        """Look up the tensor in the index.

        Raises:
            DamagedStore: the index contradicts itself.
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
        # Of the index of the step, only its own row is sent along.
        return ViewElements, (self.step.only(self.row), 0)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def _nbytes(self) -> int:
        return int(self.step.tables.number("nbytes")[self.row])

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The lengths of the axes in the order of the store."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the axes, as in `d0_16`: axes of the same name have the same length in all tensors."""
        return tuple(f"d{axis}_{length}" for axis, length in enumerate(self.shape))

    def flat(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements `start` to `stop` in the order of the store, 1-D of `dtype`.

        Reads the inner chunks of the store that hold them, or the whole tensor if it is not plain. Checks the
        digest only if all elements are read.

        Raises:
            DamagedStore: chunks are missing or damaged, or the digest differs.
        """
        if not self.is_plain:
            return Tensor(self.step, self.row).read().reshape(-1).view(self.dtype)[start:stop]
        bits = self.element.bits if self.element.is_packed else 8 * self.dtype.itemsize
        first, last = start * bits // 8, ceil_div(stop * bits, 8)
        payload = self.step.read(self.row, first, last)
        is_whole = first == 0 and last == self._nbytes
        if is_whole and digest(payload) != self.step.tables.digest[self.row].tobytes():
            raise DamagedStore(f"{self.step.key}: row {self.row}: the digest does not match")
        if not self.element.is_packed:
            return np.frombuffer(payload, self.dtype)
        skipped = start - first * 8 // bits
        return dtypes.unpack(payload, self.element, skipped + stop - start)[skipped:].astype(self.dtype)

    def read(self, key: Sequence[Index]) -> npt.NDArray[Any]:
        """Return the same as numpy's `array[key]`. `key` has an integer or slice for each axis.

        Reads the elements between the first and the last needed one, but skips gaps of more than 1 MiB.
        Memory: the result, and 64 MiB.

        Raises:
            DamagedStore: chunks are missing or damaged.
        """
        ranges = [_as_range(index, length) for index, length in zip(key, self.shape, strict=True)]
        ascending = [needed if needed.step > 0 else needed[::-1] for needed in ranges]
        out = np.empty([len(ascending[axis]) for axis in self.axes], self.dtype)
        if out.size:
            self._fill(out, [ascending[axis] for axis in self.axes])
        in_order = out.transpose([self.axes.index(axis) for axis in range(len(self.axes))])
        final = tuple(map(_final_index, key, ranges))
        part: npt.NDArray[Any] = in_order[final]
        return part

    def _fill(self, out: npt.NDArray[Any], needed: list[range]) -> None:
        """Read the needed positions of each axis, axes in the order of the store, into `out`."""
        shape = self.stored_shape
        if not shape or not self.is_plain:
            whole = self.flat(0, self.size).reshape(shape)
            out[...] = whole[tuple(slice(r.start, r.stop, r.step) for r in needed)]
            return
        axis = self._axis_to_read(needed)
        row = math.prod(shape[axis + 1 :])
        along, inner = needed[axis], tuple(slice(r.start, r.stop, r.step) for r in needed[axis + 1 :])
        rows = max(_RUN_NBYTES // max(row * self.dtype.itemsize, 1), 1)
        run = max(rows // along.step, 1)
        for number, outer in enumerate(itertools.product(*needed[:axis])):
            base = 0
            for position, length in zip((*outer, 0), shape[: axis + 1], strict=True):
                base = base * length + position
            target = out.reshape(-1, *out.shape[axis:])[number]
            for start in range(0, len(along), run):
                positions = along[start : start + run]
                elements = self.flat((base + positions[0]) * row, (base + positions[-1] + 1) * row)
                rows_read = elements.reshape(-1, *shape[axis + 1 :])
                target[start : start + len(positions)] = rows_read[(slice(None, None, along.step), *inner)]

    def _axis_to_read(self, needed: list[range]) -> int:
        """Return the axis along which runs are read, one for each combination of positions before it."""
        shape = self.stored_shape
        for axis, along in enumerate(needed):
            inner = zip(needed[axis + 1 :], shape[axis + 1 :], strict=True)
            if along.step == 1 and all(len(r) == length for r, length in inner):
                return axis  # every element of the runs is needed
            if math.prod(shape[axis + 1 :]) * along.step * self.dtype.itemsize <= _WASTED_NBYTES:
                return axis
        return len(shape) - 1


def chunk_shape(elements: ViewElements, nbytes: int) -> tuple[int, ...]:
    """Return the lengths of a chunk of about `nbytes`, axes in the order of the store.

    Tensors are cut along their slowest axis, so that every chunk is contiguous in the store. A tensor that is
    not plain is one chunk.
    """
    shape = elements.stored_shape
    chunk = [max(length, 1) for length in shape]
    if not elements.is_plain:
        return tuple(chunk)
    for axis, length in enumerate(shape):
        row = math.prod(chunk[axis + 1 :]) * elements.dtype.itemsize
        if row <= nbytes:
            count = ceil_div(length, max(nbytes // row, 1))
            chunk[axis] = max(ceil_div(length, max(count, 1)), 1)
            break
        chunk[axis] = 1
    return tuple(chunk)


def _shown(element: ElementType) -> tuple[np.dtype[Any], int]:
    """Return the type by which elements are shown, and the length of the additional axis; 0 for none."""
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
        return dtype, 0  # an opaque type, or a byte order that other readers do not know
    return np.dtype(np.uint8), dtype.itemsize


def _as_range(index: Index, length: int) -> range:
    """Return the positions that an index selects on an axis of this length."""
    if isinstance(index, slice):
        return range(length)[index]
    position = range(length)[index]
    return range(position, position + 1)


def _final_index(index: Index, selected: range) -> Index:
    """Return the index that remains after the positions were read in ascending order."""
    if isinstance(index, int):
        return 0
    return slice(None, None, 1 if selected.step > 0 else -1)
