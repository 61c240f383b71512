"""Stores of made-up ranks: which of them hold the same is said by numbers."""

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

    Tensors are named `op_type.op_name.io.slot`; their content is any number: equal numbers are equal bytes.
    """

    def __init__(self) -> None:
        """Make an empty store."""
        self.objects = open_objects(StoreAddress(f"memory://replicas-{next(_NUMBERS)}"))
        commit.ensure_root(self.objects)

    @property
    def store(self) -> DumpStore:
        """It, opened for reading."""
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
            rank: whose step it is.
            step: its number.
            contents: what each tensor holds.
            constant: tensors hold one value each, over and over.
            reported: only statistics were dumped.
            status: `complete` or `partial`.
            statistics: contents that the statistics are of, where they are not those of the bits.
        """
        key = StepKey(rank, step)
        made = make_tables(key, list(contents))
        for row, (name, content) in enumerate(contents.items()):
            self._fill(made, row, name, content, (statistics or contents).get(name, content))
        if constant:
            for field in ("max", "mean"):
                made.statistics[:, FIELDS.index(field)] = made.statistics[:, FIELDS.index("min")]
            made.statistics[:, FIELDS.index("std")] = 0
        if reported:
            made.labels[:, LABELS.index("kind")] = RowKind.STATISTICS.value
            made = replace(made, digest=np.zeros_like(made.digest))
        commit_tables(self.objects, key, made, status)

    @staticmethod
    def _fill(made: Tables, row: int, name: str, content: int, of_statistics: int) -> None:
        op_type, op_name, io, slot = name.rsplit(".", 3)
        for label, value in (("op_type", op_type), ("op_name", op_name), ("io", io)):
            made.labels[row, LABELS.index(label)] = value
        made.labels[row, LABELS.index("source")] = f"{name}.npy"
        made.numbers[row, NUMBERS.index("slot")] = int(slot)
        made.digest[row] = np.random.default_rng(content).integers(0, 256, 16)
        mean = np.random.default_rng(of_statistics).standard_normal()
        known = {"count": 64, "min": mean - 4, "max": mean + 4, "mean": mean, "std": 1, "l2_norm": 8 + mean}
        for field, number in known.items():
            made.statistics[row, FIELDS.index(field)] = number
