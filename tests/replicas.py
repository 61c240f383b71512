"""Stores of made-up ranks that are replicas, some of which are off; and short forms of what is found."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.steps import commit_tables, make_tables
from ingest.api import DumpStore
from ingest.questions.divergence import Divergence
from tests.stores import MadeDump, ingest_directly, tensor_name
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store import commit
from workers.store.model import Grid, RowKind, StoreAddress
from workers.store.opening import open_objects
from workers.store.tables import LABELS, NUMBERS, Tables

# Fill stores with made-up ranks; numbers determine which of their tensors are equal.


_NUMBERS = itertools.count()


class Replicas:
    """A store in memory, filled step by step.

    Tensors are named `op_type.op_name.io.slot`. A number stands for the content of a tensor: equal numbers
    mean equal bytes.
    """

    def __init__(self) -> None:
        """Make an empty store."""
        self.objects = open_objects(StoreAddress(f"memory://replicas-{next(_NUMBERS)}"))
        commit.ensure_root(self.objects)

    @property
    def store(self) -> DumpStore:
        """The store, opened for reading."""
        return DumpStore(self.objects)

    def put(
        self,
        rank: int,
        step: int,
        contents: Mapping[str, int],
        *,
        constant: bool = False,
        reported: bool = False,
        status: str = "complete",
        statistics: Mapping[str, int] | None = None,
    ) -> None:
        """Commit one step of one rank.

        Args:
            rank: the rank.
            step: the step.
            contents: the content of each tensor, by name.
            constant: all elements of each tensor are equal.
            reported: only statistics were dumped.
            status: `complete` or `partial`.
            statistics: the contents from which statistics are computed, where they differ from `contents`.
        """
        key = StepKey(rank, step)
        tables = make_tables(key, list(contents))
        for row, (name, content) in enumerate(contents.items()):
            self._fill(tables, row, name, content, (statistics or contents).get(name, content))
        if constant:
            for field in ("max", "mean"):
                tables.statistics[:, FIELDS.index(field)] = tables.statistics[:, FIELDS.index("min")]
            tables.statistics[:, FIELDS.index("std")] = 0
        if reported:
            tables.labels[:, LABELS.index("kind")] = RowKind.STATISTICS.value
            tables = replace(tables, digest=np.zeros_like(tables.digest))
        commit_tables(self.objects, key, tables, status)

    @staticmethod
    def _fill(tables: Tables, row: int, name: str, content: int, statistics_content: int) -> None:
        op_type, op_name, io, slot = name.rsplit(".", 3)
        for label, value in (("op_type", op_type), ("op_name", op_name), ("io", io)):
            tables.labels[row, LABELS.index(label)] = value
        tables.labels[row, LABELS.index("source")] = f"{name}.npy"
        tables.numbers[row, NUMBERS.index("slot")] = int(slot)
        tables.digest[row] = np.random.default_rng(content).integers(0, 256, 16)
        mean = np.random.default_rng(statistics_content).standard_normal()
        values = {"count": 64, "min": mean - 4, "max": mean + 4, "mean": mean, "std": 1, "l2_norm": 8 + mean}
        for field, number in values.items():
            tables.statistics[row, FIELDS.index(field)] = number


def gappy_replicas() -> Replicas:
    """Return two ranks with four steps: one of them lacks step 1, and one step of the other is partial."""
    made = Replicas()
    for rank in range(2):
        for step in range(4):
            if (rank, step) != (1, 1):
                status = "partial" if (rank, step) == (0, 3) else "complete"
                made.put(rank, step, {"Adam.w.input.0": step + 1, "Adam.v.input.1": step + 2}, status=status)
    return made


# Runs whose ranks are replicas, some of which are off; and short forms of what is found.


WEIGHT, STATE, REDUCED = "Adam.dense.input.0", "Adam.dense.input.1", "AllReduce.dense.output.0"
ACTIVATION, NORM = "ReLU.dense.output.0", "Adam.norm.input.0"


def summary(found: Divergence) -> list[tuple[tuple[int, ...], int, str]]:
    """Return who is off, since when, in what."""
    return [(odd.ranks, odd.first_step, odd.first.name) for odd in found.odd]


def absent(found: Divergence) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [(missing.state, missing.what, missing.ranks, missing.name) for missing in found.missing]


def replicas(
    ranks: Iterable[int] = range(4),
    steps: Iterable[int] = range(4),
    *,
    off: Iterable[tuple[int, int, str]] = (),
) -> Replicas:
    """Make data-parallel ranks, of which some are off in (rank, step, tensor)."""
    made = Replicas()
    wrong = set(off)
    for step in steps:
        for rank in ranks:
            contents = {ACTIVATION: 1000 * step + rank + 1}
            for number, name in enumerate((WEIGHT, STATE, REDUCED, NORM)):
                bad = 500 + rank if (rank, step, name) in wrong else 0
                contents[name] = 10_000 * (step + 1) + 1000 * number + bad
            made.put(rank, step, contents)
    return made


def on_a_mesh(off: Iterable[tuple[int, int, str]] = (), tensor: int = 2, data: int = 3) -> Replicas:
    """Ranks on a grid: `tensor` parts of a matrix, each held by `data` replicas."""
    made, wrong = Replicas(), set(off)
    for step in range(4):
        for rank in range(tensor * data):
            part, replica = rank % tensor, rank // tensor
            contents = {
                "AllReduce.forward.output.0": 10_000 * (step + 1) + replica,
                WEIGHT: 20_000 * (step + 1) + part,
                NORM: 30_000 * (step + 1),
                ACTIVATION: 50_000 * (step + 1) + rank,
            }
            made.put(
                rank,
                step,
                {name: content + 500 * ((rank, step, name) in wrong) for name, content in contents.items()},
            )
    return made


# Make a store in which one tensor may differ between two ranks.


#: The name of the operator, and the time in its file name.
ADD = "Add.net_Add-op0"
TIME = 1_795_220_037_870_000


def two_ranks(dump: MadeDump, store: Path, a: np.ndarray, b: np.ndarray, grid: Grid | None = None) -> str:
    """Make a store with one tensor, which is `a` on rank 0 and `b` on rank 1, and return its path."""
    for rank, values in enumerate((a, b)):
        dump.add(values, tensor_name(ADD, time=TIME), rank=rank)
    ingest_directly(dump.root, store, grid)
    return str(store)
