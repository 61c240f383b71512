"""What makes a tensor of a store usable as an array: `np.asarray(tensor)`, `tensor[5:7]`, `len(tensor)`."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.model import MIB

#: Up to this distance between needed elements, in bytes, the elements between them are read as well. It is
#: the size of an inner chunk of the store.
_WASTED_NBYTES = MIB
#: The bytes that are read at once, in addition to the memory of the result.
_RUN_NBYTES = 64 * MIB


class ArrayLike(ABC):
    """A tensor whose elements are read when they are asked for."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""

    @property
    @abstractmethod
    def stored_axes(self) -> tuple[int, ...] | None:
        """The axes in the order of the store, the slowest first; None if only all of it can be read."""

    @abstractmethod
    def stored(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements `start` to `stop` in the order of the store, 1-D."""

    @abstractmethod
    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:
        """Return all elements."""

    def __array__(self, dtype: npt.DTypeLike | None = None, *, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a tensor of a store is read into a new array: copy=False is impossible")
        return np.asarray(self.read(), dtype)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Return the same elements as `read()[key]`, as numpy does.

        If `key` has whole numbers and slices, the elements between the first and the last needed one are
        read, but gaps of more than 1 MiB are skipped. The digest is then not compared; chunks have checksums
        of their own. Memory: the result, and 64 MiB.
        """
        axes = self.stored_axes
        keys = _full_key(key, len(self.shape)) if axes else None
        if axes is None or keys is None:
            return np.asarray(self.read()[key])
        ranges = [_needed(index, length) for index, length in zip(keys, self.shape, strict=True)]
        ascending = [needed if needed.step > 0 else needed[::-1] for needed in ranges]
        in_store = self._read_ranges([ascending[axis] for axis in axes], [self.shape[axis] for axis in axes])
        final = tuple(map(_within, keys, ranges))
        return np.asarray(in_store.transpose(np.argsort(axes))[final])

    def _read_ranges(self, needed: Sequence[range], shape: Sequence[int]) -> npt.NDArray[Any]:
        """Return the needed positions of each axis, axes in the order of the store."""
        dtype = self.stored(0, 0).dtype
        out = np.empty([len(along) for along in needed], dtype)
        if not out.size:
            return out
        axis = _axis_to_read(needed, shape, dtype.itemsize)
        row = math.prod(shape[axis + 1 :])
        along, inner = needed[axis], tuple(slice(r.start, r.stop, r.step) for r in needed[axis + 1 :])
        rows = max(_RUN_NBYTES // max(row * dtype.itemsize, 1), 1)
        run = max(rows // along.step, 1)
        targets = out.reshape(-1, *out.shape[axis:])
        for target, outer in zip(targets, itertools.product(*needed[:axis]), strict=True):
            base = int(np.ravel_multi_index((*outer, 0), tuple(shape[: axis + 1])))
            for start in range(0, len(along), run):
                positions = along[start : start + run]
                elements = self.stored((base + positions[0]) * row, (base + positions[-1] + 1) * row)
                read = elements.reshape(-1, *shape[axis + 1 :])
                target[start : start + len(positions)] = read[(slice(None, None, along.step), *inner)]
        return out

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __bool__(self) -> bool:
        # It is there: `if tensor` asks nothing about its elements.
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())


def _axis_to_read(needed: Sequence[range], shape: Sequence[int], itemsize: int) -> int:
    """Return the axis along which runs are read, one for each combination of positions before it."""
    for axis, along in enumerate(needed):
        inner = zip(needed[axis + 1 :], shape[axis + 1 :], strict=True)
        if along.step == 1 and all(len(r) == length for r, length in inner):
            return axis  # every element of the runs is needed
        if math.prod(shape[axis + 1 :]) * along.step * itemsize <= _WASTED_NBYTES:
            return axis
    return len(shape) - 1


def _full_key(key: Any, ndim: int) -> tuple[int | slice, ...] | None:
    """Return a whole number or a slice for each axis; None for what numpy has to make sense of."""
    parts = key if isinstance(key, tuple) else (key,)
    places = [place for place, part in enumerate(parts) if part is ...] or [len(parts)]
    basic = [part for part in parts if part is not ...]
    if len(places) > 1 or len(basic) > ndim or not all(map(_is_basic, basic)):
        return None
    filled = [slice(None)] * (ndim - len(basic))
    return (*basic[: places[0]], *filled, *basic[places[0] :])


def _is_basic(part: Any) -> bool:
    return isinstance(part, int | np.integer | slice) and not isinstance(part, bool)


def _needed(index: int | slice, length: int) -> range:
    """Return the places along an axis that an index selects, in its order."""
    if isinstance(index, slice):
        return range(length)[index]
    place = range(length)[index]
    return range(place, place + 1)


def _within(index: int | slice, needed: range) -> int | slice:
    """Return what selects, of the needed places in ascending order, those of an index in its order."""
    if not isinstance(index, slice):
        return 0
    return slice(None, None, 1 if needed.step > 0 else -1)
