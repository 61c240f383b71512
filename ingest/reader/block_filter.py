"""Choosing tensors in blocks: one step of several ranks at a time, as `StepStatistics` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.arrays.bounds import BoundedColumn
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import BLOCK_COLUMNS, Block, TensorAxis
from workers.store.roles import hints_of, roles_of

_INTEGERS = frozenset(["slot", "occurrence", "copy"])


class AxisColumns:
    """The columns of the tensors of a growing axis, each made once for each tensor."""

    def __init__(self, axis: TensorAxis) -> None:
        self._axis = axis
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def column(self, name: str, width: int) -> npt.NDArray[Any]:
        """Return a field of the keys, `name` or `hint`, (width,)."""
        known = self._columns.get(name)
        size = 0 if known is None else known.size
        if size < width:
            added = self._values(name, size)
            self._columns[name] = added if known is None else np.concatenate([known, added])
        return self._columns[name][:width]

    def _values(self, name: str, first: int) -> npt.NDArray[Any]:
        keys = [self._axis[place] for place in range(first, len(self._axis))]
        if name == "hint":
            return hints_of((key.op_type, key.op_name, key.io, key.slot) for key in keys)
        return np.array([getattr(key, name) for key in keys], np.int64 if name in _INTEGERS else object)

    def roles(self, row: npt.NDArray[Any], count: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Return the roles of one step, (rank, tensor) of str; "" for what is absent.

        Args:
            row: (rank, tensor), the order of execution; -1 for what is absent.
            count: (rank, tensor), numbers of elements.
        """
        width = row.shape[1]
        hints = self.column("hint", width)
        graphs = list(
            zip(self.column("net", width).tolist(), self.column("graph", width).tolist(), strict=True)
        )
        roles = np.full(row.shape, "", object)
        for rank in range(row.shape[0]):
            places = np.flatnonzero(row[rank] >= 0)
            places = places[np.argsort(row[rank, places], kind="stable")]
            roles[rank, places] = roles_of(
                hints[places], count[rank, places], [graphs[place] for place in places.tolist()]
            )
        return roles


class BlockFilter:
    """A choice of tensors, applied to one block after the other of the same axis."""

    def __init__(
        self, fields: FilterFields, axis: TensorAxis, columns: frozenset[str] = BLOCK_COLUMNS
    ) -> None:
        """Parse a choice, which may name these columns.

        Raises:
            UsageError: it is not one; see `TensorFilter`.
        """
        self.filter = TensorFilter(fields, columns)
        self._columns = AxisColumns(axis)
        # Names are those of all steps: comparing them for each step would take most of the time.
        self._of_keys: npt.NDArray[np.bool_] = np.zeros(0, bool)

    def applied(self, block: Block) -> Block:
        """Return a block in which the tensors that are not chosen are absent."""
        mask = self.mask(block)
        return replace(
            block,
            row=np.where(mask, block.row, -1).astype(block.row.dtype),
            statistics=np.where(mask[..., None], block.statistics, np.nan),
            digest=np.where(mask[..., None], block.digest, 0).astype(block.digest.dtype),
        )

    def mask(self, block: Block) -> npt.NDArray[np.bool_]:
        """Return a mask of the tensors that are present and chosen, (rank, tensor)."""
        width = block.row.shape[1]
        if block.tensors is not None:
            return block.present & self.of_names(int(block.tensors[-1]) + 1)[block.tensors]
        if self.filter.is_of_names:
            return block.present & self.of_names(width)
        columns = {name: self._column(block, name) for name in self.filter.names}
        return self.filter.evaluate(columns, block.row.shape) & block.present

    def may(self, block: Block, sketches: Mapping[str, BoundedColumn]) -> npt.NDArray[np.bool_]:
        """Return a mask of the tensors that are present and may be chosen, (rank, tensor).

        Args:
            block: has all tensors from the first one, and the statistics that the choice names.
            sketches: by name, what it asks of sketches, (rank, tensor).
        """
        columns = {
            name: sketches[name] if name in sketches else self._column(block, name)
            for name in self.filter.names
        }
        shape = block.row.shape
        may = self.filter.evaluate(columns, shape) | self.filter.evaluate(columns, shape, possible=True)
        return may & block.present

    def of_names(self, width: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the first tensors of the axis that a choice of names has, (width,)."""
        if self._of_keys.size < width:
            columns = {name: self._columns.column(name, width) for name in self.filter.names}
            self._of_keys = np.broadcast_to(self.filter.evaluate(columns, (width,)), (width,))
        return self._of_keys[:width]

    def _column(self, block: Block, name: str) -> Any:
        if name in FIELDS:
            return block.statistic(name)
        if name == "role":
            return self._columns.roles(block.row, block.statistic("count"))
        if name == "rank":
            return np.array(block.ranks)[:, None]
        if name == "step":
            return block.step
        return self._columns.column(name, block.row.shape[1])
