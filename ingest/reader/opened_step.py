"""One committed step of one rank, opened: which rows and columns its index has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS
from workers.store import tables
from workers.store.commit import Commit
from workers.store.model import RowKind, StoreAddress
from workers.store.opening import open_objects
from workers.store.step import StoredStep
from workers.store.tables import Tables

#: What a condition over the tensors of steps may name.
COLUMNS = frozenset([*tables.LABELS, *tables.NUMBERS, *FIELDS, "rank", "step", "name"]) - {"header"}


@dataclass(eq=False)
class OpenedStep(StoredStep):
    """One committed step of one rank: its rows and columns."""

    def __reduce__(self) -> tuple[Any, ...]:
        # It opens the store again where it arrives; what was read of the index goes with it.
        return _reopen, (type(self), self.objects.address, self.commit, self._tables)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} {self.commit.summary.status}>"

    @property
    def address(self) -> StoreAddress:
        """The store it is in."""
        return self.objects.address

    @property
    def fingerprint(self) -> str:
        """The generation that is committed."""
        return self.commit.fingerprint

    def only(self, row: int) -> Self:
        """Return this generation of the step with one row alone, which is its row 0.

        Small enough to be sent to where that row is read; nothing but its elements is read there, and they
        are found also when a later generation of the step has been committed.
        """
        path = str(self.tables.label("array")[row])
        return type(self)(self.objects, self.commit.abridged(path), self.tables.only(row))

    def rows(self, where: Filter | None = None, equal: Mapping[str, str] | None = None) -> list[int]:
        """Return the rows of the tensors that fulfil a condition and have these labels."""
        kinds = self.tables.label("kind")
        mask = (kinds == RowKind.TENSOR.value) | (kinds == RowKind.STATISTICS.value)
        for label, value in (equal or {}).items():
            mask &= self.tables.label(label) == value
        if where is not None:
            mask &= where.mask(self._columns(where.names), len(mask))
        return [int(row) for row in np.flatnonzero(mask)]

    def tensor_name(self, row: int) -> str:
        """Return operator type and name, input or output, slot; and the occurrence, where a loop repeats it."""
        table = self.tables
        op_type, op_name, io = (table.label(field)[row] for field in ("op_type", "op_name", "io"))
        occurrence = int(table.number("occurrence")[row])
        repeated = f"#{occurrence}" if occurrence else ""
        return f"{op_type}.{op_name}.{io}.{int(table.number('slot')[row])}{repeated}"

    def _columns(self, names: Iterable[str]) -> dict[str, Any]:
        """Return these columns; `rank` and `step` are single numbers."""
        found: dict[str, Any] = {}
        for name in names:
            if name in tables.LABELS:
                found[name] = self.tables.label(name)
            elif name in tables.NUMBERS:
                found[name] = self.tables.number(name)
            elif name in FIELDS:
                found[name] = self.tables.statistic(name)
            elif name == "rank":
                found[name] = self.key.rank
            elif name == "step":
                found[name] = -1 if self.key.step is None else self.key.step
            else:
                rows = range(len(self.tables.labels))
                found[name] = np.array([self.tensor_name(row) for row in rows], object)
        return found


def _reopen(kind: type[OpenedStep], address: StoreAddress, found: Commit, table: Tables | None) -> OpenedStep:
    return kind(open_objects(address), found, table)
