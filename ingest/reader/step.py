"""One committed step of one rank: its tensors, conditions on its index, its rows; lists as tables.

Rows are flat dictionaries of plain values: the documented contract of what `ls --json` prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ingest.reader.tensor import TENSOR_FIELDS, Tensor
from ingest.reader.tensor_filter import TensorFilter
from ingest.reader.text import cell_text, counted, html_facts, html_table, plain
from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.store import tables
from workers.store.commit import Commit
from workers.store.consolidated.blocks import TENSOR_KINDS
from workers.store.model import CommitSummary, RowKind, StoreAddress, tensor_name
from workers.store.opening import open_objects
from workers.store.roles import roles_of_tables
from workers.store.sketch_names import ColumnsWithSketches, is_sketch_column
from workers.store.step import StoredStep
from workers.store.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

    from ingest.reader.catalog import Catalog
    from ingest.reader.export import Exported


_Item = TypeVar("_Item")
#: Items that are written out where a list is printed.
_PRINTED = 20


class TableList(list[_Item]):
    """A list that is also a table, and is short where it is printed."""

    columns: ClassVar[tuple[str, ...]]
    """The columns of the table of pandas: the keys of a row."""
    shown: ClassVar[tuple[str, ...]]
    """Those of them that a notebook shows."""
    noun: ClassVar[str]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each item as a flat dictionary of plain values."""
        return map(plain, self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> _Item: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> _Item | Self:
        if isinstance(index, slice):
            return type(self)(super().__getitem__(index))
        return super().__getitem__(index)

    def __repr__(self) -> str:
        lines = [repr(item) for item in self[:_PRINTED]]
        if len(self) > _PRINTED:
            lines.append(f"... {len(self) - _PRINTED} more")
        return "[" + ",\n ".join(lines) + "]"

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each item. Whole numbers that may be unknown are `Int64`: `<NA>` is unknown."""
        import pandas as pd  # deferred: takes 0.4 s to import

        frame = pd.DataFrame(list(self.rows()), columns=list(self.columns))
        counts = [name for name in frame if name in ("step", "count") or str(name).endswith("_count")]
        return frame.astype(dict.fromkeys(counts, "Int64"))

    def _repr_html_(self) -> str:
        cells = ([cell_text(row[column]) for column in self.shown] for row in self.rows())
        return html_table(counted(len(self), self.noun), self.shown, cells, total=len(self))


class Tensors(TableList[Tensor]):
    """The tensors that a search returned: a list, which is also a table with the columns of `find --json`."""

    columns = (*TENSOR_FIELDS, *FIELDS)
    shown = ("rank", "step", "name", "dtype", "shape", "nan_count", "min", "max", "mean")
    noun = "tensor"

    def __init__(self, tensors: Iterable[Tensor] = (), undecided: Iterable[Tensor] = ()) -> None:
        """Make a list of tensors; `undecided` are others that may fulfil the condition of the search."""
        super().__init__(tensors)
        self.undecided: tuple[Tensor, ...] = tuple(undecided)
        """Those of which sketches tell too little: the condition holds for one bound, not for the other."""

    @property
    def exactness(self) -> str:
        """`exact`; or `bounded`: these certainly fulfil the condition, and none but `undecided` may, too."""
        return "bounded" if self.undecided else "exact"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield `Tensor.to_dict` of each tensor."""
        return (tensor.to_dict() for tensor in self)


#: Fields of `CommitSummary` that are not part of the contract.
_NOT_SHOWN = ("key", "severities", "failed_rules", "first_findings")


def summary_row(summary: CommitSummary) -> dict[str, Any]:
    """Return the totals of one committed step."""
    totals = asdict(summary)
    for name in _NOT_SHOWN:
        del totals[name]
    # One number: `dump-ingest anomalies` shows what each rule found.
    totals["findings"] = sum(summary.findings.values())
    key = summary.key
    totals["problems"] = summary.problems
    return {"rank": key.rank, "step": key.step, "fingerprint": summary.fingerprint, **totals}


#: The fields of `step_row`, in order.
STEP_FIELDS = (
    "rank",
    "step",
    "fingerprint",
    *(
        part.name
        for part in fields(CommitSummary)
        if part.name not in _NOT_SHOWN and part.name != "fingerprint"
    ),
    "problems",
    "committed_at",
    "layout",
    "host",
    "root",
    "rank_from",
    "generations",
    "has_tensors",
    "coordinates",
)


def step_row(step: Step) -> dict[str, Any]:
    """Return one committed step: its totals, its source, and when it was committed."""
    record, rank = step.commit.record, step.key.rank
    places = {} if step.catalog is None else step.catalog.coordinates(rank)[rank]
    return {
        **summary_row(step.commit.summary),
        "committed_at": record.committed_at,
        "layout": record.source.layout,
        "host": record.source.host,
        "root": record.source.root,
        "rank_from": record.source.rank_from,
        "generations": len(record.generations),
        "has_tensors": step.has_tensors,
        "coordinates": {axis: [*place] for axis, place in places.items()},
    }


def file_rows(step: Step, *, problems: bool) -> Iterator[dict[str, Any]]:
    """Yield the files of a step that are not tensors; with `problems`, the rows that have a problem instead.

    The index does not have what was skipped, such as symbolic links. With `problems`, these are yielded as
    well, with the kind `skipped`.
    """
    table = step.tables
    if problems:
        yield from _skipped(step)
    kinds, reasons = table.label("kind"), table.label("problem")
    chosen = (reasons != "") if problems else ~np.isin(kinds, TENSOR_KINDS)
    for row in np.flatnonzero(chosen):
        yield {
            "rank": step.key.rank,
            "step": step.key.step,
            "source": str(table.label("source")[row]),
            "kind": str(kinds[row]),
            "nbytes": int(table.number("nbytes")[row]),
            "digest": table.digest[row].tobytes().hex(),
            "problem": str(reasons[row]),
        }


def overflow_rows(step: Step) -> Iterator[dict[str, Any]]:
    """Yield each overflow that the hardware recorded in a step, with the operator in which it happened.

    Raises:
        DamagedStore: the index, or a record in it, is damaged.
    """
    table = step.tables
    for row in np.flatnonzero(table.label("kind") == RowKind.OVERFLOW.value):
        try:
            record = json.loads(str(table.label("record")[row]))
        except ValueError as exc:
            raise DamagedStore(f"{step.key}: the overflow record of row {row} is damaged") from exc
        for failed in record["failed"]:
            yield {
                "rank": step.key.rank,
                "step": step.key.step,
                **failed,
                "source": str(table.label("source")[row]),
                "record": record["record"],
            }


def _skipped(step: Step) -> Iterator[dict[str, Any]]:
    table = step.tables
    indexed = {
        f"{source}: {problem}"
        for source, problem in zip(table.label("source"), table.label("problem"), strict=True)
    }
    for problem in step.commit.record.problems:
        source, colon, reason = problem.partition(": ")
        if colon and problem not in indexed:
            yield {
                "rank": step.key.rank,
                "step": step.key.step,
                "source": source,
                "kind": "skipped",
                "nbytes": 0,
                "digest": "",
                "problem": reason,
            }


#: The columns that a condition on the tensors of steps may name.
COLUMNS = ColumnsWithSketches([*tables.LABELS, *tables.NUMBERS, *FIELDS, "rank", "step", "name", "role"])


class Step(StoredStep):
    """One committed step of one rank. Its index is read when it is first needed, and kept.

    What `dir` lists is for users; the rest serves the modules that read a store.
    """

    catalog: Catalog | None = None
    """What opened it; None in a process to which the step was sent."""
    _roles: npt.NDArray[Any] | None = None

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
        rows: list[int] = np.flatnonzero(mask).tolist()
        return rows

    def decided_rows(self, where: TensorFilter) -> tuple[list[int], list[int]]:
        """Return the rows of the tensors that fulfil a condition, and of those that may.

        The latter are tensors of which sketches tell too little: the condition holds for one bound of what it
        asks for, and not for another.
        """
        columns, mask = self._columns(where.names), self._is_tensor()
        certain = mask & where.mask(columns, len(mask))
        possible = certain
        if any(map(is_sketch_column, where.names)):
            possible = mask & where.evaluate(columns, mask.shape, possible=True)
        return np.flatnonzero(certain).tolist(), np.flatnonzero(possible & ~certain).tolist()

    def _is_tensor(self) -> npt.NDArray[np.bool_]:
        return np.isin(self.tables.label("kind"), TENSOR_KINDS)

    def _columns(self, names: Iterable[str]) -> dict[str, Any]:
        """Return these columns, (row,); `rank` and `step` are single numbers."""
        names = frozenset(names)
        of_sketches = frozenset(filter(is_sketch_column, names))
        columns = {name: self._column(name) for name in names - of_sketches}
        if of_sketches:
            # deferred: 0.015 s, which few conditions need
            from ingest.reader.step_tables import read_sketches
            from workers.store.sketch_columns import SketchColumns

            sketches = SketchColumns(self.tables, str(self.key), lambda: read_sketches(self))
            columns |= {name: sketches.column(name) for name in of_sketches}
        return columns

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

        See `ingest.reader.export.export`, which also takes rows and returns an iterator.
        """
        from ingest.reader.export import export  # deferred: 0.005 s, and questions do not export

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
        return html_facts(str(self.key), {name: step_row(self)[name] for name in _SHOWN})


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
