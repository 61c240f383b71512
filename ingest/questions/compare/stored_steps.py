"""The steps of a store as a side of a comparison. Their digests are known, so equal tensors cost nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.selection import Selection
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.compare.stored_forms import StoredForms
from ingest.reader.catalog import Catalog
from ingest.reader.context import context_of
from ingest.reader.context.configuration import sample_of
from ingest.reader.context.ge_graph import ModelOutput
from ingest.reader.parallel.mesh import Coordinates
from ingest.reader.snapshot import Snapshot, take_snapshot
from ingest.reader.step import Step
from ingest.reader.step_tables import read_marginals
from ingest.reader.tensor import Tensor
from workers.arrays.dtypes import from_name
from workers.arrays.sketches.marginals import Marginal
from workers.model import StepKey
from workers.store import metadata
from workers.store.consolidated.blocks import tensors_of
from workers.store.model import ArraySpec, RowKind, StoreAddress
from workers.store.tables import Tables, attributes_of, record_of
from workers.tasks.operands import Operand, Stored


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
