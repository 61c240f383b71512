"""What decides about the tensors of a step besides their bytes: types, shapes and layouts, from its index.

Shapes and meanings are made when the first one is asked for, and tensors with the same fields share them: an
object for each tensor takes longer than reading the index, and sets off full garbage collections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class ListOnDemand(Sequence[_Item]):
    """A list that is made when its first item is asked for."""

    def __init__(self, count: int, make: Callable[[], list[_Item]]) -> None:
        """Begin with the number of items; `make` returns all of them."""
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> _Item: ...
    @overload
    def __getitem__(self, place: slice) -> list[_Item]: ...
    def __getitem__(self, place: int | slice) -> _Item | list[_Item]:
        return self._items[place]

    @cached_property
    def _items(self) -> list[_Item]:
        return self._make()


@dataclass(frozen=True, eq=False)
class StoredForms:
    """The forms of some rows of an index. All lists and arrays have the order of the rows."""

    tables: Tables
    rows: npt.NDArray[np.int64]

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
        return ListOnDemand(len(self.rows), lambda: self._shared(self._shape_of))

    @property
    def meanings(self) -> Sequence[tuple[Any, ...]]:
        """What decides about each tensor besides its bytes.

        That is the type, the array, the layout on the accelerator (None in that of the host), whether the
        first axis changes fastest, and the shape.
        """
        return ListOnDemand(len(self.rows), lambda: self._shared(self._meaning_of))

    @cached_property
    def _kinds(self) -> list[int]:
        """For each tensor the place of the first one with the same fields: most have those of others."""
        first_of: dict[tuple[object, ...], int] = {}
        alike = zip(*self.fields.T.tolist(), strict=True)
        return [first_of.setdefault(fields, place) for place, fields in enumerate(alike)]

    def _shared(self, make: Callable[[int], _Item]) -> list[_Item]:
        """Return the result of `make` for the place of each tensor; tensors with the same fields share it."""
        made = {first: make(first) for first in set(self._kinds)}
        return [made[first] for first in self._kinds]

    def _shape_of(self, place: int) -> tuple[int, ...]:
        row = self.rows[place]
        return tuple(self.tables.shape[row].tolist()[: self.tables.numbers[row, _NDIM]])

    def _meaning_of(self, place: int) -> tuple[Any, ...]:
        row = self.rows[place]
        dtype, path, layout, form, device = self.tables.labels[row, _LABEL_PLACES].tolist()
        _, fortran, groups = self.tables.numbers[row, _NUMBER_PLACES].tolist()
        turned = (form, device, groups) if layout == "device" else None
        return dtype, path.rpartition("/")[2], turned, fortran == 1, self._shape_of(place)

    def _array_names(self) -> list[str]:
        names = {path: path.rpartition("/")[2] for path in set(self.arrays)}
        return [names[path] for path in self.arrays]
