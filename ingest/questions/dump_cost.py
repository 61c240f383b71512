"""How many files and bytes a dump of some operators, or of a configuration, will have.

Of each operator, the dump in the store tells the size of its tensors: of the same rank and step if it has
them, else of the nearest. Steps whose index is damaged are passed over.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from ingest.disk import space_at
from ingest.dump_configs.check import CheckedConfig
from ingest.dump_configs.model import AskedDump
from ingest.reader.catalog import Catalog
from ingest.reader.operator_kinds import is_parameter, tensor_rows
from ingest.reader.step import Step
from ingest.reader.text import Plain, counted
from ingest.units import human_bytes
from workers.arrays import dtypes
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey, grouped
from workers.store.model import RowKind

#: Bytes of a file besides the elements of its tensor, by system, where only statistics are known.
_OVERHEAD_NBYTES = {"mindspore": 128, "msprobe": 1850, "sglang": 2000, "te": 2000}
_OVERHEAD_OF_DUMP_DATA = 96
#: Bytes of an element of which the type is not known.
_USUAL_ITEMSIZE = 4


class OperatorId(NamedTuple):
    """An operator, whichever of its calls."""

    net: str
    graph: str
    op_type: str
    op_name: str


@dataclass(frozen=True, slots=True)
class Amount:
    """Tensors of one step of one rank."""

    files: int = 0
    nbytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.files + other.files, self.nbytes + other.nbytes)


def readable_step(store: Catalog, rank: int, step: int) -> Step | None:
    """Return a step whose index can be read; None if it is damaged."""
    try:
        opened = store.step(rank, step)
        _ = opened.tables
    except DamagedStore:
        return None
    return opened


Amounts: TypeAlias = dict[tuple[str, ...], Amount]
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
        self._measured: dict[StepKey, Amounts] = {}
        self._near: dict[tuple[int, int], Step | None] = {}
        self._steps = grouped((key.rank, key.step) for key in store.keys if key.step is not None)
        """By rank, the steps that the store has, without those that turned out to be damaged."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a step."""
        return sorted(self._steps)

    def of(
        self, operators: Collection[OperatorId] | None, ranks: Iterable[int], steps: Iterable[int]
    ) -> Amount:
        """Estimate how much these operators dump in these steps of these ranks; None: all, and parameters."""
        chosen = operators or ()
        inner = (call for operator in chosen for call in self._inner.get(operator.op_name, ()))
        names = {operator[1:] for operator in (*chosen, *inner)}
        total = Amount()
        for rank, step in product(ranks, list(steps)):
            for name, amount in self.of_step(rank, step).items():
                if operators is None or name[:3] in names:
                    total += amount
        return total

    def of_step(self, rank: int, step: int) -> Amounts:
        """Return how much each operator dumps in a step: by graph, type, name, and `io`."""
        nearest = self._nearest(rank, step)
        if nearest is None:
            return {}
        if nearest.key not in self._measured:
            self._measured[nearest.key] = self._measure(nearest)
        return self._measured[nearest.key]

    def _nearest(self, rank: int, step: int) -> Step | None:
        if (rank, step) not in self._near:
            opened = None
            for near in sorted(self._steps, key=lambda known: (abs(known - rank), known)):
                steps = self._steps[near]
                while steps and opened is None:
                    known = min(steps, key=lambda known: (abs(known - step), -known))
                    opened = readable_step(self._store, near, known)
                    if opened is None:
                        steps.remove(known)
            self._near[rank, step] = opened
        return self._near[rank, step]

    def _measure(self, step: Step) -> Amounts:
        tables = step.tables
        rows = tensor_rows(tables)
        shape = tables.shape[rows]
        elements = np.where(shape >= 0, shape, 1).prod(axis=1).tolist()
        names = ("graph", "op_type", "op_name", "io", "source", "dtype")
        labels = (tables.label(name)[rows].astype(str).tolist() for name in names)
        sizes = tables.number("source_size")[rows].tolist()
        dumped = (tables.label("kind")[rows] == RowKind.TENSOR.value).tolist()
        seen: set[str] = set()
        amounts: Amounts = {}
        for *key, source, dtype, size, is_dumped, count in zip(*labels, sizes, dumped, elements, strict=True):
            if is_dumped and source in seen:  # a file of several tensors
                continue
            seen.add(source)
            amount = Amount(1, int(size) if is_dumped else _nbytes_of(dtype, count) + self._overhead)
            amounts[tuple(key)] = amounts.get(tuple(key), Amount()) + amount
        return amounts


def _nbytes_of(dtype: str, size: int) -> int:
    try:
        return dtypes.from_name(dtype.lower()).nbytes(size)
    except (ValueError, TypeError):
        return math.ceil(size * _USUAL_ITEMSIZE)


#: What one operator of a tensor costs in a table of statistics, in bytes.
_STATISTICS_NBYTES = 200


@dataclass(frozen=True, slots=True)
class DumpCost(Plain):
    """What a configuration will dump."""

    also: ClassVar = ("full_disk_after",)

    files: int
    """Files of one step, on all ranks that dump."""
    nbytes: int
    steps: int | None
    """The number of steps; None for all, however many the job has."""
    ranks: int
    free_nbytes: int | None
    """What is free where the dump goes; None if that is not a directory of this host."""
    unknown: tuple[str, ...]

    @property
    def full_disk_after(self) -> int | None:
        """After how many steps the disk is full; None if it has room for all, or that is not known."""
        if self.free_nbytes is None or not self.nbytes:
            return None
        fits = self.free_nbytes // self.nbytes
        return fits if self.steps is None or fits < self.steps else None

    def __str__(self) -> str:
        """Return the output of `dump-ingest check --store`."""
        return "\n".join(_cost_lines(self))


def dump_cost(store: Catalog, checked: CheckedConfig) -> DumpCost:
    """Estimate how much a configuration will dump, taking the job to be the one in the store.

    Raises:
        UsageError: the store has no step, or nobody can tell what the configuration asks for.
    """
    asked = checked.asked
    sizes = Sizes(store, checked.system)
    if asked is None or not sizes.ranks:
        raise UsageError(
            f"{store.url}: nothing to estimate with", hint="The store must have steps of this job."
        )
    ranks = sizes.ranks if asked.devices is None else sorted(asked.devices.intersection(sizes.ranks))
    step = max((key for key in store.keys if key.step is not None), key=lambda key: key.order).step or 0
    amount = _amount(asked, sizes, ranks, step)
    space = space_at(_existing(Path(asked.directory))) if asked.directory.startswith("/") else None
    return DumpCost(
        files=amount.files,
        nbytes=amount.nbytes,
        steps=None if asked.steps is None else len(asked.steps),
        ranks=len(ranks),
        free_nbytes=None if space is None else space.free_nbytes,
        unknown=tuple(_unknown(asked, sizes.of_step(sizes.ranks[0], step))),
    )


def _unknown(asked: AskedDump, amounts: Amounts) -> Iterator[str]:
    names = [(op_type, op_name) for _, op_type, op_name, _ in amounts]
    for pattern in asked.operators or ():
        if not any(pattern.matches(*name) for name in names):
            yield pattern.text


def _amount(asked: AskedDump, sizes: Sizes, ranks: Iterable[int], step: int) -> Amount:
    every = (each for rank in ranks for each in sizes.of_step(rank, step).items())
    owned = (own for (_, *name), own in every if _is_asked(asked, *name))
    return sum(
        (own if asked.tensors else Amount(0, own.files * _STATISTICS_NBYTES) for own in owned), Amount()
    )


def _is_asked(asked: AskedDump, op_type: str, op_name: str, io: str) -> bool:
    if asked.operators is None:
        return is_parameter(op_type) or asked.io.includes(io)
    return asked.io.includes(io) and any(pattern.matches(op_type, op_name) for pattern in asked.operators)


def _existing(path: Path) -> Path:
    while not os.path.isdir(path) and path != path.parent:  # noqa: PTH112  (False where it may not be read)
        path = path.parent
    return path


def _cost_lines(cost: DumpCost) -> Iterator[str]:
    steps = "each step" if cost.steps is None else f"each of {counted(cost.steps, 'step')}"
    yield (
        f"  {steps}: about {counted(cost.files, 'file')}, {human_bytes(cost.nbytes)} on "
        f"{counted(cost.ranks, 'rank')}"
    )
    if cost.free_nbytes is not None:
        after = cost.full_disk_after
        room = "room for all" if after is None else f"full after {counted(after, 'step')}"
        yield f"  {human_bytes(cost.free_nbytes)} free there: {room}"
    for text in cost.unknown:
        yield f"  no operator in the store is called {text}"
