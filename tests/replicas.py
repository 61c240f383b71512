"""Fill stores with made-up ranks; numbers determine which of their tensors are equal."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bench.steps import commit_tables, make_tables
from ingest.api import DumpStore
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store import commit
from workers.store.model import RowKind, StoreAddress
from workers.store.opening import open_objects
from workers.store.tables import LABELS, NUMBERS, Tables

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
