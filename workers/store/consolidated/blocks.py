"""One step over several ranks as aligned arrays: what the cubes are made of.

A tensor has one place on the axis of tensors, whichever rank dumped it and in whichever step. The axis only
ever grows, so a place never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import FIELDS
from workers.store.model import RowKind, tensor_name
from workers.store.tables import Tables

#: Kinds of rows that are tensors.
TENSOR_KINDS = (RowKind.TENSOR.value, RowKind.STATISTICS.value)


OperatorKey: TypeAlias = tuple[str, str, str, str, int]
"""Net, graph, type, name and occurrence of a call of an operator: `TensorKey.operator`."""


class TensorKey(NamedTuple):
    """What identifies a tensor on another rank, or in another step.

    A tuple, because it is looked up for every tensor of every rank and step: a dataclass takes five times as
    long to make and to hash.
    """

    net: str
    graph: str
    op_type: str
    op_name: str
    io: str
    slot: int
    occurrence: int = 0
    copy: int = 0
    """The number of this tensor among the tensors of one step that agree in all other fields."""

    @property
    def name(self) -> str:
        """The name as `Tensor.name` spells it."""
        return tensor_name(*self[2:7])

    @property
    def operator(self) -> OperatorKey:
        """The part of the key that all tensors of one call of an operator share."""
        return self.net, self.graph, self.op_type, self.op_name, self.occurrence


#: The columns that a condition on the tensors of blocks may name.
BLOCK_COLUMNS = frozenset([*TensorKey._fields, *FIELDS, "name", "role", "rank", "step"])


class TensorAxis:
    """An append-only list of tensors, each with its place."""

    def __init__(self, keys: Iterable[TensorKey] = ()) -> None:
        self._keys = list(keys)
        self._places = dict(zip(self._keys, range(len(self._keys)), strict=True))

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, place: int) -> TensorKey:
        return self._keys[place]

    def __contains__(self, key: TensorKey) -> bool:
        return key in self._places

    @property
    def keys(self) -> list[TensorKey]:
        """All tensors, by place."""
        return list(self._keys)

    def place(self, key: TensorKey) -> int | None:
        """Return the place of a tensor; None if it is not on the axis."""
        return self._places.get(key)

    def extend(self, keys: Iterable[TensorKey]) -> npt.NDArray[np.int64]:
        """Return the places of `keys`, shape (n,); new ones are added at the end."""
        place_of = self._places
        places = []
        for key in keys:
            place = place_of.get(key)
            if place is None:
                place = place_of[key] = len(self._keys)
                self._keys.append(key)
            places.append(place)
        return np.array(places, np.int64)


def tensors_of(tables: Tables) -> tuple[npt.NDArray[np.int64], list[TensorKey]]:
    """Return the rows of a step that are tensors, in order of execution, and the key of each."""
    rows = np.flatnonzero(np.isin(tables.label("kind"), TENSOR_KINDS))
    labels = (tables.label(name)[rows].tolist() for name in ("net", "graph", "op_type", "op_name", "io"))
    numbers = (tables.number(name)[rows].tolist() for name in ("slot", "occurrence"))
    columns = (*labels, *numbers, [0] * len(rows))
    keys = list(map(TensorKey._make, zip(*columns, strict=True)))
    if len(set(keys)) < len(keys):
        seen: dict[TensorKey, int] = {}
        for place, key in enumerate(keys):
            copy = seen[key] = seen.get(key, -1) + 1
            keys[place] = key._replace(copy=copy)
    return rows, keys


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One step of several ranks. What a rank does not have is -1, NaN or zeros.

    The arrays end where the axis ended when the block was made: it does not have the tensors of later places.
    A narrow block has only some `tensors`.
    """

    step: int
    ranks: tuple[int, ...]
    row: npt.NDArray[np.int32]
    """(rank, tensor): row of the index of the step, and thereby the order of execution; -1 for none."""
    statistics: npt.NDArray[np.float64]
    """(rank, tensor, len(fields)); NaN if unknown."""
    digest: npt.NDArray[np.uint8]
    """(rank, tensor, 16); zeros if no elements were dumped, or digests were not asked for."""
    fields: tuple[str, ...] = FIELDS
    tensors: npt.NDArray[np.int64] | None = None
    """(tensor,): the places of its tensors on the axis, ascending; None if it has all from the first one."""

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Whether a rank has a tensor, (rank, tensor)."""
        return np.asarray(self.row >= 0)

    def statistic(self, name: str) -> npt.NDArray[np.float64]:
        """Return one statistic, (rank, tensor)."""
        cube: npt.NDArray[np.float64] = self.statistics[:, :, self.fields.index(name)]
        return cube

    def of_ranks(self, ranks: tuple[int, ...]) -> Block:
        """Return the block with these ranks alone, in this order; it must have all of them."""
        if ranks == self.ranks:
            return self
        places = [self.ranks.index(rank) for rank in ranks]
        return replace(
            self,
            ranks=ranks,
            row=self.row[places],
            statistics=self.statistics[places],
            digest=self.digest[places],
        )

    def widened(self, width: int) -> Block:
        """Return the block with `width` tensors; the added ones are absent."""
        more = width - self.row.shape[1]
        if more <= 0:
            return self
        return replace(
            self,
            row=np.pad(self.row, ((0, 0), (0, more)), constant_values=-1),
            statistics=np.pad(self.statistics, ((0, 0), (0, more), (0, 0)), constant_values=np.nan),
            digest=np.pad(self.digest, ((0, 0), (0, more), (0, 0))),
        )


def block_of(step: int, tables: Mapping[int, Tables], axis: TensorAxis) -> Block:
    """Align one step of the ranks in `tables` along `axis`, to which new tensors are added."""
    ranks = tuple(sorted(tables))
    tensors = []
    for rank in ranks:
        rows, keys = tensors_of(tables[rank])
        tensors.append((rows, axis.extend(keys)))
    width = len(axis)
    row = np.full((len(ranks), width), -1, np.int32)
    statistics = np.full((len(ranks), width, len(FIELDS)), np.nan)
    digest = np.zeros((len(ranks), width, DIGEST_BYTES), np.uint8)
    for number, (rank, (rows, places)) in enumerate(zip(ranks, tensors, strict=True)):
        row[number, places] = rows
        statistics[number, places] = tables[rank].statistics[rows]
        digest[number, places] = tables[rank].digest[rows]
    return Block(step, ranks, row, statistics, digest)
