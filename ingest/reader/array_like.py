"""What makes a tensor of a store usable as an array: `np.asarray(tensor)`, `tensor[5:7]`, `len(tensor)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


class ArrayLike(ABC):
    """A tensor whose elements are read when they are asked for."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""

    @property
    @abstractmethod
    def slowest_axis(self) -> int | None:
        """The axis along which parts are contiguous in the store; None if only all of it can be read."""

    @abstractmethod
    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:
        """Return all elements."""

    @abstractmethod
    def block(self, axis: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return positions `begin` to `end` of the slowest axis."""

    def __array__(self, dtype: npt.DTypeLike | None = None, *, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a tensor of a store is read into a new array: copy=False is impossible")
        return np.asarray(self.read(), dtype)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Return the same elements as `read()[key]`, as numpy does.

        Of the slowest axis, only the positions between the first and the last needed one are read, if `key`
        has whole numbers and slices. The digest is then not compared; chunks have checksums of their own.
        """
        axis = self.slowest_axis
        if axis is None:
            return np.asarray(self.read()[key])
        keys = _full_key(key, len(self.shape))
        if keys is None:
            return np.asarray(self.read()[key])
        length, along = self.shape[axis], keys[axis]
        if isinstance(along, slice):
            needed = range(length)[along]
            rest: int | slice = slice(None, None, needed.step)
        else:
            position = _position(along, length, axis)
            needed, rest = range(position, position + 1), 0
        begin, end = (min(needed), max(needed) + 1) if needed else (0, 0)
        part = self.block(axis, begin, end)
        return np.asarray(part[(*keys[:axis], rest, *keys[axis + 1 :])])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __bool__(self) -> bool:
        # It is there: `if tensor` asks nothing about its elements.
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())


def _position(index: int, length: int, axis: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {length}")
    return index % length


def _full_key(key: Any, ndim: int) -> tuple[int | slice, ...] | None:
    """Return a whole number or a slice for each axis; None for what numpy has to make sense of."""
    parts = key if isinstance(key, tuple) else (key,)
    ellipses = [place for place, part in enumerate(parts) if part is ...]
    basic = [part for part in parts if part is not ...]
    if len(ellipses) > 1 or not all(map(_is_basic, basic)):
        return None
    place = ellipses[0] if ellipses else len(parts)
    if len(basic) > ndim:
        return None
    filled = [slice(None)] * (ndim - len(basic))
    return tuple(_plain(part) for part in (*basic[:place], *filled, *basic[place:]))


def _is_basic(part: Any) -> bool:
    return isinstance(part, int | np.integer | slice) and not isinstance(part, bool)


def _plain(part: Any) -> int | slice:
    return part if isinstance(part, slice) else int(part)
