"""How many files and bytes a dump of some operators will have, and how long it will take.

Of each operator, the dump in the store tells the size of its tensors: of the same rank and step if it has
them, else of the nearest. Steps whose index is damaged are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.next_dump.suspicion import OperatorId
from ingest.reader.catalog import Catalog
from ingest.reader.step import Step
from workers.arrays import dtypes
from workers.errors import DamagedStore
from workers.store.model import RowKind

#: Bytes of a file besides the elements of its tensor, by system, where only statistics are known.
_OVERHEAD_NBYTES = {"mindspore": 128, "msprobe": 1850, "sglang": 2000, "te": 2000}
_OVERHEAD_OF_DUMP_DATA = 96
#: The share of files that must not be older than the one before: some systems write in several threads.
_IN_ORDER = 0.8
#: Bytes of an element of which the type is not known.
_USUAL_ITEMSIZE = 4


@dataclass(frozen=True, slots=True)
class Amount:
    """Tensors of one step of one rank."""

    files: int = 0
    nbytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.files + other.files, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class DumpTime:
    """How long dumping took."""

    seconds: float | None
    unknown: str = ""
    """Why it is not known; "" if it is."""


def readable_step(store: Catalog, rank: int, step: int) -> Step | None:
    """Return a step whose index can be read; None if it is damaged."""
    try:
        opened = store.step(rank, step)
        _ = opened.tables
    except DamagedStore:
        return None
    return opened


Amounts: TypeAlias = dict[tuple[str, str, str, str], Amount]
"""By graph, type and name of an operator, and `io` of its tensors."""


class Sizes:
    """What the store knows of the sizes of tensors, by operator. Reads the index of each step once."""

    def __init__(
        self, store: Catalog, system: str, inner: Mapping[str, Collection[OperatorId]] = MappingProxyType({})
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            store: the store.
            system: the dump system that will write the files.
            inner: by the name of a module, the calls that are dumped with it.
        """
        self._store = store
        self._inner = inner
        self._overhead = _OVERHEAD_NBYTES.get(system, _OVERHEAD_OF_DUMP_DATA)
        self._measured: dict[tuple[int, int | None], Amounts] = {}
        self._near: dict[tuple[int, int], Step | None] = {}
        self._steps: dict[int, list[int]] = {}
        """By rank, the steps that the store has, without those that turned out to be damaged."""
        for key in store.keys:
            if key.step is not None:
                self._steps.setdefault(key.rank, []).append(key.step)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a step."""
        return sorted(self._steps)

    def of(self, operators: Collection[OperatorId], ranks: Iterable[int], steps: Iterable[int]) -> Amount:
        """Estimate how much these operators dump on these ranks in these steps."""
        inner = (call for operator in operators for call in self._inner.get(operator.op_name, ()))
        names = {operator[1:] for operator in (*operators, *inner)}
        wanted = list(steps)
        total = Amount()
        for rank in ranks:
            for step in wanted:
                for name, amount in self.of_step(rank, step).items():
                    if name[:3] in names:
                        total += amount
        return total

    def of_all(self, ranks: Iterable[int], steps: Iterable[int]) -> Amount:
        """Estimate how much all operators dump on these ranks in these steps, parameters included."""
        wanted = list(steps)
        near = (self.of_step(rank, step) for rank in ranks for step in wanted)
        return sum((amount for amounts in near for amount in amounts.values()), Amount())

    def time_of_step(self, rank: int, step: int) -> DumpTime:
        """Return how long the dump of a step took, from its first tensor to its last."""
        nearest = self._nearest(rank, step)
        if nearest is None:
            return DumpTime(None, "the store has no step")
        tables = nearest.tables
        rows = np.flatnonzero(tables.label("kind").astype(str) == RowKind.TENSOR.value)
        if not len(rows):
            return DumpTime(None, "the store has statistics alone, which do not tell what elements take")
        stamps = tables.number("timestamp")[rows]
        if len(known := stamps[stamps > 0]) > 1 and (span := int(known.max() - known.min())):
            return DumpTime(span / 1e6)
        times = tables.number("mtime_ns")[rows]
        span = int(times.max() - times.min())
        if not span:
            return DumpTime(None, "the files of a step have the same time, or there is only one")
        # Rows are in order of execution, and so are the times of files that nobody copied.
        if np.mean(np.diff(times) >= 0) < _IN_ORDER:
            return DumpTime(None, "the times of the files are not in order of execution: they were copied")
        return DumpTime(span / 1e9)

    def of_step(self, rank: int, step: int) -> Amounts:
        """Return how much each operator dumps in a step: by graph, type, name, and `io`."""
        nearest = self._nearest(rank, step)
        if nearest is None:
            return {}
        key = (nearest.key.rank, nearest.key.step)
        if key not in self._measured:
            self._measured[key] = self._measure(nearest)
        return self._measured[key]

    def _nearest(self, rank: int, step: int) -> Step | None:
        """Return the step in the store that is most like another one, of those that can be read."""
        if (rank, step) not in self._near:
            self._near[rank, step] = self._search_nearest(rank, step)
        return self._near[rank, step]

    def _search_nearest(self, rank: int, step: int) -> Step | None:
        for near in sorted(self._steps, key=lambda known: (abs(known - rank), known)):
            steps = self._steps[near]
            for known in sorted(steps, key=lambda known: (abs(known - step), -known)):
                if (opened := readable_step(self._store, near, known)) is not None:
                    return opened
                steps.remove(known)
        return None

    def _measure(self, step: Step) -> Amounts:
        tables = step.tables
        kinds = tables.label("kind")
        is_tensor = np.isin(kinds.astype(str), (RowKind.TENSOR.value, RowKind.STATISTICS.value))
        rows = np.flatnonzero(is_tensor)
        nbytes = _nbytes_of_rows(step, rows)
        labels = (tables.label(name)[rows].tolist() for name in ("graph", "op_type", "op_name", "io"))
        sources, sizes = tables.label("source")[rows].tolist(), tables.number("source_size")[rows].tolist()
        dumped = (kinds[rows] == RowKind.TENSOR.value).tolist()
        seen: set[str] = set()
        amounts: Amounts = {}
        columns = zip(*labels, sources, sizes, dumped, nbytes.tolist(), strict=True)
        for graph, op_type, op_name, io, source, size, is_dumped, size_of_elements in columns:
            if is_dumped and source in seen:  # a file of several tensors
                continue
            seen.add(source)
            amount = Amount(1, int(size) if is_dumped else int(size_of_elements) + self._overhead)
            key = (str(graph), str(op_type), str(op_name), str(io))
            amounts[key] = amounts.get(key, Amount()) + amount
        return amounts


def _nbytes_of_rows(step: Step, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bytes of the elements of tensors by their shapes and types, (row,)."""
    tables = step.tables
    shape = tables.shape[rows]
    sizes = np.where(shape >= 0, shape, 1).prod(axis=1)
    names = tables.label("dtype")[rows]
    return np.array(
        [_nbytes_of(str(name), int(size)) for name, size in zip(names, sizes, strict=True)], np.int64
    )


def _nbytes_of(dtype: str, size: int) -> int:
    try:
        return dtypes.from_name(dtype.lower()).nbytes(size)
    except (ValueError, TypeError):
        return math.ceil(size * _USUAL_ITEMSIZE)
