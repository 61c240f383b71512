"""Committed steps made from nothing, as many as wanted, and a store that counts what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.wrapped_objects import WrappedObjects
from workers.arrays.digest import digest
from workers.arrays.statistics import COUNT_FIELDS, FIELDS
from workers.model import StepKey
from workers.store import commit, metadata, tables
from workers.store.model import CommitSummary, Origin, RowKind
from workers.store.objects import ObjectStore
from workers.store.record import StepContents
from workers.store.tables import LABELS, NUMBERS, Tables


def make_tables(key: StepKey, names: Sequence[str], anomalous: Sequence[int] = (), seed: int = 0) -> Tables:
    """Return the tables of one step of a rank: a tensor for each name, of which some hold NaN.

    Args:
        key: whose they are; with `seed`, it decides the statistics.
        names: names of operators, each with one output.
        anomalous: rows that hold one NaN.
        seed: another one gives other statistics.
    """
    count = len(names)
    random = np.random.default_rng([key.rank, key.step or 0, seed])
    labels = np.full((count, len(LABELS)), "", object)
    _set(labels, LABELS, "kind", RowKind.TENSOR.value)
    _set(labels, LABELS, "graph", "0")
    _set(labels, LABELS, "op_type", "MatMul")
    _set(labels, LABELS, "op_name", list(names))
    _set(labels, LABELS, "io", "output")
    _set(labels, LABELS, "dtype", "float32")
    _set(labels, LABELS, "statistics_from", "computed")
    numbers = np.zeros((count, len(NUMBERS)), np.int64)
    _set(numbers, NUMBERS, "timestamp", np.arange(count))
    _set(numbers, NUMBERS, "offset", -1)
    # Such numbers as float32 tensors give: half of their digits are zero.
    statistics = random.standard_normal((count, len(FIELDS))).astype(np.float32).astype(np.float64)
    statistics[:, [FIELDS.index(name) for name in COUNT_FIELDS]] = 0
    statistics[:, FIELDS.index("count")] = 4096
    statistics[list(anomalous), FIELDS.index("nan_count")] = 1
    return Tables(
        labels=labels,
        numbers=numbers,
        shape=np.full((count, 1), 4096, np.int64),
        digest=random.integers(0, 256, (count, 16), np.uint8),
        statistics=statistics,
    )


def commit_tables(objects: ObjectStore, key: StepKey, made: Tables, status: str = "complete") -> str:
    """Commit a step that has these tables and no payloads; return its fingerprint."""
    documents, chunks = tables.encode(made)
    nan_tensors = int((made.statistic("nan_count") > 0).sum())
    fingerprint = digest(made.digest.tobytes() + made.statistics.tobytes()).hex()
    totals: dict[str, Any] = {
        one.name: 0 for one in fields(CommitSummary) if one.default is one.default_factory is MISSING
    }
    totals |= {
        "key": key,
        "fingerprint": fingerprint,
        "status": status,
        "tensors": len(made.labels),
        "nan_tensors": nan_tensors,
        "anomalous_tensors": nan_tensors,
    }
    commit.write(
        objects,
        CommitSummary(**totals),
        origin=Origin("made", "bench", "/nowhere"),
        nodes={"": metadata.group(), "index": metadata.group(), **documents},
        objects_to_write=chunks,
        contents=StepContents(nets=(), graphs=("0",), stored={}, problems=()),
    )
    return fingerprint


class CountingStore(WrappedObjects):
    """Counts the objects that are asked for."""

    requests = 0

    def get(self, key: str) -> bytes | None:
        """Count one more, and get it."""
        self.requests += 1
        return super().get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Count them all, and get them."""
        self.requests += len(keys)
        return super().get_many(keys)


def _set(table: npt.NDArray[Any], columns: Sequence[str], name: str, values: Any) -> None:
    table[:, columns.index(name)] = values
