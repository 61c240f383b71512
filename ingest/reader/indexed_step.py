"""One committed step of one rank whose index can be searched, and which can be sent to other processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from ingest.reader.choice import Choice
from ingest.reader.parallel.mesh import Coordinates
from ingest.reader.tensor_filter import TensorFilter
from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS
from workers.store import tables
from workers.store.commit import Commit
from workers.store.model import RowKind, StoreAddress, tensor_name
from workers.store.opening import open_objects
from workers.store.roles import roles_of_tables
from workers.store.sketches.sketch_names import ColumnsWithSketches, is_sketch_column
from workers.store.step import StoredStep
from workers.store.tables import Tables

#: The columns that a condition on the tensors of steps may name.
COLUMNS = ColumnsWithSketches([*tables.LABELS, *tables.NUMBERS, *FIELDS, "rank", "step", "name", "role"])


class StepSource(Protocol):
    """Where other steps come from: the catalog of a store."""

    @property
    def url(self) -> str:
        """The URL of the store."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a committed step, in order."""

    def coordinates(self, rank: Choice = None) -> dict[int, Coordinates]:
        """Return by rank where it is in the mesh of the job; empty for one of which nothing is known."""

    def step(self, rank: int, step: int | None) -> IndexedStep:
        """Return one committed step of one rank; with None, its run files.

        Raises:
            UsageError: it is not in the store.
        """


class IndexedStep(StoredStep):
    """One committed step of one rank: `StoredStep` with conditions on its index, and pickling."""

    catalog: StepSource | None = None
    """What opened it; None in a process to which the step was sent."""
    _roles: npt.NDArray[Any] | None = None
    """Kept as long as the index is."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The receiver opens the store again. What was read of the index is sent along.
        return _reopen, (type(self), self.objects.address, self.commit, self._tables)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} {self.commit.summary.status}>"

    @property
    def address(self) -> StoreAddress:
        """The address of the store that holds it."""
        return self.objects.address

    @property
    def fingerprint(self) -> str:
        """The name of the committed generation."""
        return self.commit.fingerprint

    def only(self, row: int) -> Self:
        """Return this generation of the step with a single row of its index, which becomes row 0.

        It is small enough to be sent to the process that reads the row. That process reads nothing but the
        elements of the row, and finds them even if a later generation of the step has been committed.
        """
        array = str(self.tables.label("array")[row])
        return type(self)(self.objects, self.commit.abridged(array), self.tables.only(row))

    @property
    def roles(self) -> npt.NDArray[Any]:
        """The role of each row in training, (row,) of str; see `workers.store.roles`."""
        known = self._roles  # another thread may forget it meanwhile
        if known is None:
            known = self._roles = roles_of_tables(self.tables, self._is_tensor())
        return known

    def forget_tables(self) -> None:
        """Release the index, and what follows from it."""
        super().forget_tables()
        self._roles = None

    def rows(self, where: Filter | TensorFilter | None = None) -> list[int]:
        """Return the rows of the tensors that fulfil a condition, in order."""
        mask = self._is_tensor()
        if where is not None:
            mask &= where.mask(self._columns(where.names), len(mask))
        return [int(row) for row in np.flatnonzero(mask)]

    def decided_rows(self, where: TensorFilter) -> tuple[list[int], list[int]]:
        """Return the rows of the tensors that fulfil a condition, and of those that may.

        The latter are tensors of which sketches tell too little: the condition holds for one bound of what it
        asks for, and not for another.
        """
        columns, mask = self._columns(where.names), self._is_tensor()
        certain = mask & where.mask(columns, len(mask))
        possible = certain
        if any(map(is_sketch_column, where.names)):
            possible = mask & where.may(columns, len(mask))
        return np.flatnonzero(certain).tolist(), np.flatnonzero(possible & ~certain).tolist()

    def _is_tensor(self) -> npt.NDArray[np.bool_]:
        kinds = self.tables.label("kind")
        return np.asarray((kinds == RowKind.TENSOR.value) | (kinds == RowKind.STATISTICS.value))

    def _columns(self, names: Iterable[str]) -> dict[str, Any]:
        """Return these columns, (row,); `rank` and `step` are single numbers."""
        names = frozenset(names)
        of_sketches = frozenset(filter(is_sketch_column, names))
        columns = {name: self._column(name) for name in names - of_sketches}
        return columns | self._columns_of_sketches(of_sketches) if of_sketches else columns

    def _columns_of_sketches(self, names: Iterable[str]) -> dict[str, Any]:
        # deferred: 0.015 s, which few conditions need
        from ingest.reader.step_marginals import read_sketches
        from workers.store.sketches.sketch_columns import SketchColumns

        sketches = SketchColumns(self.tables, str(self.key), lambda: read_sketches(self))
        return {name: sketches.column(name) for name in names}

    def _column(self, name: str) -> Any:
        for known, column_of in (
            (tables.LABELS, self.tables.label),
            (tables.NUMBERS, self.tables.number),
            (FIELDS, self.tables.statistic),
        ):
            if name in known:
                return column_of(name)
        if name == "name":
            return self._tensor_names()
        if name == "role":
            return self.roles
        if name == "rank":
            return self.key.rank
        return -1 if self.key.step is None else self.key.step

    def _tensor_names(self) -> npt.NDArray[Any]:
        """Return the name of each row as that of a tensor, (row,) of str."""
        labels = (self.tables.label(name).tolist() for name in ("op_type", "op_name", "io"))
        numbers = (self.tables.number(name).tolist() for name in ("slot", "occurrence"))
        return np.array(list(map(tensor_name, *labels, *numbers)), object)


def _reopen(
    kind: type[IndexedStep], address: StoreAddress, commit: Commit, tables: Tables | None
) -> IndexedStep:
    return kind(open_objects(address), commit, tables)
