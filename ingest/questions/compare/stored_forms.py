"""What decides about the tensors of a step besides their bytes: types, shapes and layouts, from its index.

Nothing is made for a tensor before it is asked for: objects for all take longer than reading the index, and
are enough to set off a full garbage collection, which takes longer still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from workers.store.tables import LABELS, NUMBERS, Tables

_LABELS = ("dtype", "array", "layout", "format", "device_shape")
_NUMBERS = ("ndim", "fortran_order", "groups")
_LABEL_PLACES = [LABELS.index(name) for name in _LABELS]
_NUMBER_PLACES = [NUMBERS.index(name) for name in _NUMBERS]
_NDIM = NUMBERS.index("ndim")

_Item = TypeVar("_Item")


class MadeItems(Sequence[_Item]):
    """A list whose items are made when they are asked for, and not kept."""

    def __init__(self, count: int, make: Callable[[int], _Item]) -> None:
        """Begin with the number of items; `make` returns the item at a place."""
        self._places = range(count)
        self._make = make

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> _Item: ...
    @overload
    def __getitem__(self, place: slice) -> list[_Item]: ...
    def __getitem__(self, place: int | slice) -> _Item | list[_Item]:
        if isinstance(place, slice):
            return [self._make(number) for number in self._places[place]]
        return self._make(self._places[place])


@dataclass(frozen=True, eq=False)
class StoredForms:
    """The forms of some rows of an index. All lists and arrays have the order of the rows."""

    tables: Tables
    rows: npt.NDArray[np.int64]
    _known_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By the place of the first tensor with the same fields, see `_kinds`."""
    _known_meanings: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    @cached_property
    def dtypes(self) -> list[str]:
        """The types of the elements."""
        names: list[str] = self.tables.label("dtype")[self.rows].tolist()
        return names

    @cached_property
    def arrays(self) -> list[str]:
        """The paths of the arrays that hold the payloads."""
        paths: list[str] = self.tables.label("array")[self.rows].tolist()
        return paths

    @cached_property
    def fields(self) -> npt.NDArray[np.object_]:
        """Labels and numbers, (row, field): tensors of which all are equal have equal meanings."""
        tables, rows = self.tables, self.rows
        shape = tables.shape[rows]
        fields = np.empty((len(rows), len(_LABELS) + len(_NUMBERS) + 1), object)
        for place, name in enumerate(_LABELS):
            fields[:, place] = tables.label(name)[rows]
        # The last part of a path tells types apart, wherever the array is.
        fields[:, _LABELS.index("array")] = self._array_names()
        numbers = [tables.number(name)[rows] for name in _NUMBERS]
        packed = np.ascontiguousarray(np.column_stack([*numbers, shape]))
        fields[:, len(_LABELS)] = packed.view(f"V{packed.itemsize * packed.shape[1]}").ravel().tolist()
        return fields[:, : len(_LABELS) + 1]

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The lengths of the axes of each tensor."""
        return MadeItems(len(self.rows), self._shape)

    @property
    def meanings(self) -> Sequence[tuple[Any, ...]]:
        """What decides about each tensor besides its bytes.

        That is the type, the array, the layout on the accelerator (None in that of the host), whether the
        first axis changes fastest, and the shape.
        """
        return MadeItems(len(self.rows), self._meaning)

    @cached_property
    def _kinds(self) -> list[int]:
        """For each tensor the place of the first one with the same fields: most have those of others."""
        first_of: dict[tuple[object, ...], int] = {}
        alike = zip(*self.fields.T.tolist(), strict=True)
        return [first_of.setdefault(fields, place) for place, fields in enumerate(alike)]

    def _shape(self, place: int) -> tuple[int, ...]:
        first = self._kinds[place]
        shape = self._known_shapes.get(first)
        if shape is None:
            row = self.rows[first]
            shape = tuple(self.tables.shape[row].tolist()[: self.tables.numbers[row, _NDIM]])
            self._known_shapes[first] = shape
        return shape

    def _meaning(self, place: int) -> tuple[Any, ...]:
        first = self._kinds[place]
        meaning = self._known_meanings.get(first)
        if meaning is None:
            meaning = self._known_meanings[first] = self._meaning_of(first)
        return meaning

    def _meaning_of(self, place: int) -> tuple[Any, ...]:
        row = self.rows[place]
        dtype, path, layout, form, device = self.tables.labels[row, _LABEL_PLACES].tolist()
        _, fortran, groups = self.tables.numbers[row, _NUMBER_PLACES].tolist()
        turned = (form, device, groups) if layout == "device" else None
        return dtype, path.rpartition("/")[2], turned, fortran == 1, self._shape(place)

    def _array_names(self) -> list[str]:
        names = {path: path.rpartition("/")[2] for path in set(self.arrays)}
        return [names[path] for path in self.arrays]
