"""The steps of a store as a side of a comparison. Their digests are known, so equal tensors cost nothing.

Shapes and meanings are made when the first one is asked for, and tensors with the same fields share them: an
object for each tensor takes longer than reading the index, and sets off full garbage collections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.selection import Selection
from ingest.questions.compare.step_tensors import StepTensors
from ingest.reader.catalog import Catalog
from ingest.reader.context import context_of
from ingest.reader.context.files import sample_of
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.mesh import Coordinates
from ingest.reader.snapshot import Snapshot, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_tables import read_marginals
from ingest.reader.tensor import Tensor
from workers.arrays.dtypes import from_name
from workers.arrays.marginals import Marginal
from workers.model import StepKey
from workers.store import metadata
from workers.store.consolidated.blocks import tensors_of
from workers.store.model import ArraySpec, RowKind, StoreAddress
from workers.store.tables import LABELS, NUMBERS, Tables, attributes_of, record_of
from workers.tasks.operands import Operand, Stored

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


class StoreSource:
    """The complete steps of a store, as they were at one moment."""

    def __init__(self, selection: Selection, store: Catalog, *, include_partial: bool) -> None:
        """Take a snapshot of the store.

        Raises:
            UsageError: the store does not have the rank or step, or it is not complete.
        """
        self.label = str(selection)
        self._snapshot: Snapshot = take_snapshot(
            store, selection.rank, selection.step, include_partial=include_partial
        )
        self.left_out = self._snapshot.left_out
        self.keys = self._snapshot.keys
        self.sample = sample_of(self._snapshot.store, self.keys[0].rank) if self.keys else 0

    def coordinates(self) -> Mapping[int, Coordinates]:
        """Return by rank where it is in the mesh of the job, as the store tells."""
        return self._snapshot.store.coordinates(self._snapshot.ranks)

    def load(self, key: StepKey) -> StepTensors:
        """Read the index of one step. It is held as long as the result.

        Raises:
            DamagedStore: the index is damaged.
        """
        return load_step(self._snapshot.store, self._snapshot.chosen[key])


def load_step(store: Catalog, step: Step) -> StepTensors:
    """Read the index of a step of a store. It is held as long as the result.

    Raises:
        DamagedStore: the index is damaged.
    """
    table = step.tables
    rows, keys = tensors_of(table)
    forms = StoredForms(table, rows)
    step.forget_tables()
    return StepTensors(
        key=step.key,
        keys=keys,
        dtypes=forms.dtypes,
        shapes=forms.shapes,
        meanings=forms.meanings,
        digests=table.digest[rows],
        statistics=table.statistics[rows],
        dumped=table.label("kind")[rows] == RowKind.TENSOR.value,
        nbytes=table.number("nbytes")[rows],
        places=table.number("offset")[rows],
        operands=_StoreOperands(store, step, rows, table),
        removed=_removed(step, forms.arrays),
        forms=forms.fields,
    )


def _removed(step: Step, arrays: Sequence[str]) -> frozenset[int]:
    """Return the tensors whose payloads are not kept, from the array of each."""
    if step.has_tensors:
        return frozenset()
    return frozenset(number for number, path in enumerate(arrays) if metadata.is_of_tensors(path))


@dataclass
class _StoreOperands:
    """Makes operands of the rows of one step of a store."""

    store: Catalog
    step: Step
    rows: npt.NDArray[np.int64]
    tables: Tables
    address: StoreAddress = field(init=False)
    label: str = field(init=False)
    _arrays: dict[str, tuple[str, ArraySpec]] = field(default_factory=dict)
    """By label `array` of the index, where it is and what it is like."""

    def __post_init__(self) -> None:
        """Note what all operands have in common: a step may have ten thousand."""
        self.address = self.step.address
        self.label = f"{self.step.key} of {self.address.url}"

    @cached_property
    def _fields(self) -> list[tuple[Any, ...]]:
        """Array, layout, offset, size and order of the axes of each tensor: asked for one by one, slow."""
        labels = (self.tables.label(name)[self.rows].tolist() for name in ("array", "layout"))
        numbers = (
            self.tables.number(name)[self.rows].tolist() for name in ("offset", "size", "fortran_order")
        )
        return list(zip(*labels, *numbers, strict=True))

    def operand(self, number: int, tensors: StepTensors) -> Operand:
        step = self.step
        path, layout, first, size, fortran = self._fields[number]
        nbytes = int(tensors.nbytes[number])
        place: Stored | None = None
        if first >= 0 and nbytes:  # if all tensors of a type are empty, they have no array
            if path not in self._arrays:
                self._arrays[path] = step.commit.place_of(path), step.packed_spec(path)
            place = Stored(self.address, *self._arrays[path], first, size)
        big_endian = path.endswith("_big_endian")
        device = None
        if layout == "device":
            device = Step(step.objects, step.commit, self.tables).device(int(self.rows[number]))
        return Operand(
            where=self.label,
            element=from_name(tensors.dtypes[number], big_endian=big_endian),
            shape=tensors.shapes[number],
            nbytes=nbytes,
            place=place,
            digest=tensors.contents[number],
            fortran_order=fortran == 1,
            device=device,
        )

    @cached_property
    def marginals(self) -> Mapping[int, Mapping[int, Marginal]]:
        """By tensor and axis the marginals of those that have any; read once, in two requests.

        Raises:
            DamagedStore: they are damaged.
        """
        with self.step.asking_again():
            by_row = read_marginals(self.step).by_row(self.tables)
        numbers = {row: number for number, row in enumerate(self.rows.tolist())}
        return {numbers[row]: known for row, known in by_row.items() if row in numbers}

    @cached_property
    def _has_records(self) -> bool:
        return bool((self.tables.label("record") != "").any())

    def full_name(self, number: int) -> str:
        """Return the name with its scope that the index or the graph files give for a tensor's operator."""
        tensor = Tensor(Step(self.step.objects, self.step.commit, self.tables), int(self.rows[number]))
        match = None if tensor.full_name else context_of(self.store, self.step.key.rank).match(tensor)
        return tensor.full_name or (match.name if match else None) or ""

    def model_output(self, number: int) -> ModelOutput | None:
        """Return the output of the model that a tensor is in the graph of GE; None if it does not tell."""
        tensor = Tensor(Step(self.step.objects, self.step.commit, self.tables), int(self.rows[number]))
        return context_of(self.store, self.step.key.rank).model_output(tensor)

    def attributes(self, number: int) -> dict[str, Any]:
        """Return what the file of a tensor holds besides its elements; see `Tensor.attributes`."""
        if not self._has_records:
            return {}
        row = int(self.rows[number])
        own = record_of(self.tables, row)
        # Most files hold one tensor, whose row has everything. Others are looked for in the whole index.
        return {**own["file"], **own} if "file" in own else attributes_of(self.tables, row)
