"""What decides about the tensors of a step besides their bytes: types, shapes and layouts, from its index.

Lists with an object for each tensor take longer to make than the index takes to read, and equal tensors do
not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from workers.store.tables import Tables

_LABELS = ("dtype", "array", "layout", "format", "device_shape")
_NUMBERS = ("ndim", "fortran_order", "groups")

_Item = TypeVar("_Item")


class LazyList(Sequence[_Item]):
    """A list that is made when an item is first asked for."""

    def __init__(self, make: Callable[[], list[_Item]]) -> None:
        """Begin without items; `make` returns them."""
        self._make = make

    @cached_property
    def _items(self) -> list[_Item]:
        return self._make()

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> _Item: ...
    @overload
    def __getitem__(self, place: slice) -> list[_Item]: ...
    def __getitem__(self, place: int | slice) -> _Item | list[_Item]:
        return self._items[place]


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

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the lengths of the axes of each tensor."""
        lengths, ndims = self.tables.shape[self.rows].tolist(), self.tables.number("ndim")[self.rows].tolist()
        return [tuple(axes[:ndim]) for axes, ndim in zip(lengths, ndims, strict=True)]

    def meanings(self) -> list[tuple[Any, ...]]:
        """Return what decides about each tensor besides its bytes.

        That is the type, the array, the layout on the accelerator (None in that of the host), whether the
        first axis changes fastest, and the shape.
        """
        labels = (
            self.tables.label(name)[self.rows].tolist() for name in ("layout", "format", "device_shape")
        )
        groups = self.tables.number("groups")[self.rows].tolist()
        turned = [
            (form, device, count) if layout == "device" else None
            for layout, form, device, count in zip(*labels, groups, strict=True)
        ]
        fortran = (self.tables.number("fortran_order")[self.rows] == 1).tolist()
        return list(zip(self.dtypes, self._array_names(), turned, fortran, self.shapes(), strict=True))

    def _array_names(self) -> list[str]:
        names = {path: path.rpartition("/")[2] for path in set(self.arrays)}
        return [names[path] for path in self.arrays]
