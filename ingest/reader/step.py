"""One committed step of one rank: its tensors, conditions on its index, and lists of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from ingest.reader import notebook
from ingest.reader.listing import TableList, Tensors
from ingest.reader.rows import STEP_FIELDS, step_row
from ingest.reader.tensor import Tensor
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

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog
    from ingest.reader.files.export import Exported

#: The columns that a condition on the tensors of steps may name.
COLUMNS = ColumnsWithSketches([*tables.LABELS, *tables.NUMBERS, *FIELDS, "rank", "step", "name", "role"])


class Step(StoredStep):
    """One committed step of one rank. Its index is read when it is first needed, and kept.

    What `dir` lists is for users; the rest serves the modules that read a store.
    """

    catalog: Catalog | None = None
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
        from ingest.reader.step_tables import read_sketches
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

    @property
    def rank(self) -> int:
        """The rank that dumped it."""
        return self.key.rank

    @property
    def step(self) -> int | None:
        """The number of the step; None for the files of a rank that belong to no step."""
        return self.key.step

    @property
    def status(self) -> str:
        """`complete`, or `partial` if files are quarantined or missing."""
        return self.commit.summary.status

    def export(self, directory: str | Path, *, overwrite: bool = False) -> list[Exported]:
        """Write the source files of this step below `directory`, byte for byte.

        See `ingest.reader.files.export.export`, which also takes rows and returns an iterator.
        """
        from ingest.reader.files.export import export  # deferred: 0.005 s, and questions do not export

        return list(export(self, Path(directory), overwrite=overwrite))

    def tensors(self) -> Tensors:
        """Return all tensors, in order of execution."""
        return Tensors(map(self.tensor_of, self.rows()))

    def tensor_of(self, row: int) -> Tensor:
        """Return the tensor of a row of the index."""
        return Tensor(self, row)

    def to_dict(self) -> dict[str, Any]:
        """Return its totals, its source and when it was committed, as `ls --json` prints them."""
        return step_row(self)

    def __dir__(self) -> list[str]:
        return [*_FOR_USERS, *(name for name in super().__dir__() if name.startswith("__"))]

    def _repr_html_(self) -> str:
        return notebook.facts(str(self.key), {name: step_row(self)[name] for name in _SHOWN})


def _reopen(kind: type[Step], address: StoreAddress, commit: Commit, tables: Tables | None) -> Step:
    return kind(open_objects(address), commit, tables)


#: The attributes of a step that completion offers.
_FOR_USERS = (
    "commit",
    "export",
    "fingerprint",
    "has_tensors",
    "key",
    "rank",
    "status",
    "step",
    "tensors",
    "to_dict",
)
#: The fields of a step that a notebook shows.
_SHOWN = (
    "rank",
    "step",
    "status",
    "tensors",
    "files",
    "quarantined",
    "nan_count",
    "findings",
    "committed_at",
)


class Steps(TableList[Step]):
    """The steps that a choice selects: a list, which is also a table with the columns of `ls --json`."""

    columns = STEP_FIELDS
    shown = _SHOWN
    noun = "step"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield `Step.to_dict` of each step."""
        return (step.to_dict() for step in self)
