"""Committed steps made from nothing, as many as wanted, and a store that counts what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import MISSING, fields
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.wrapped_objects import WrappedObjects
from workers.arrays.digest import digest
from workers.arrays.statistics import COUNT_FIELDS, FIELDS
from workers.model import StepKey
from workers.rules.step import evaluate
from workers.rules.values import RuleSet
from workers.store import commit, findings, metadata, tables
from workers.store.model import CommitSummary, Origin, RowKind
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.record import new_record
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


def commit_tables(
    objects: ObjectStore,
    key: StepKey,
    made: Tables,
    status: str = "complete",
    rules: RuleSet | None = None,
) -> str:
    """Commit a step that has these tables and no payloads; return its fingerprint.

    With `rules`, they are evaluated, and what they find is committed with it.
    """
    documents, chunks = tables.encode(made)
    found = {}
    if rules is not None:
        evaluated = evaluate(rules, made, key)
        finding_documents, finding_chunks = findings.encode(rules.definitions, evaluated)
        documents, chunks = documents | finding_documents, chunks | finding_chunks
        found = {
            "rules": evaluated.rules,
            "findings": dict(evaluated.totals),
            "severities": evaluated.severities,
        }
    nan_count = made.statistic("nan_count")
    nan_tensors = int((nan_count > 0).sum())
    fingerprint = digest(made.digest.tobytes() + made.statistics.tobytes()).hex()
    totals: dict[str, Any] = {
        field.name: 0 for field in fields(CommitSummary) if field.default is field.default_factory is MISSING
    }
    totals |= {
        "key": key,
        "fingerprint": fingerprint,
        "status": status,
        "tensors": int((made.label("kind") == RowKind.TENSOR.value).sum()),
        "statistics_only": int((made.label("kind") == RowKind.STATISTICS.value).sum()),
        "nan_tensors": nan_tensors,
        "nan_count": int(np.nansum(nan_count)),
        "anomalous_tensors": nan_tensors,
        **found,
    }
    origin = Origin("made", "bench", "/nowhere")
    record = new_record(CommitSummary(**totals), origin=origin, stored={}, graphs=("0",))
    nodes = {"": metadata.group(), "index": metadata.group(), **documents}
    commit.write(objects, record, nodes, chunks)
    return fingerprint


def commit_run(
    store: str,
    ranks: Sequence[int],
    steps: Sequence[int],
    names: Sequence[str],
    *,
    born: int | None = None,
    seed: int = 0,
    processes: int = 1,
    rules: RuleSet | None = None,
    has_elements: bool = True,
) -> None:
    """Commit steps without payloads.

    Args:
        store: the URL; credentials come from the environment.
        ranks: all of them have each step.
        steps: the steps.
        names: names of operators, each with one output.
        born: from this step on, two tensors of each rank hold a NaN; None for never.
        seed: another one gives other statistics.
        processes: how many commit at once.
        rules: what is evaluated over each step of a rank.
        has_elements: whether the steps claim that elements were dumped, and not statistics alone.
    """
    commit.ensure_root(open_objects(resolve(store)))
    keys = [StepKey(rank, step) for step in steps for rank in ranks]
    one_part = partial(
        _commit_keys, store, names=names, born=born, seed=seed, rules=rules, has_elements=has_elements
    )
    if processes == 1:
        one_part(keys)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(one_part, keys[i::processes]) for i in range(processes)]:
            future.result()


def _commit_keys(
    store: str,
    keys: Sequence[StepKey],
    *,
    names: Sequence[str],
    born: int | None,
    seed: int,
    rules: RuleSet | None,
    has_elements: bool,
) -> None:
    objects = open_objects(resolve(store))
    middle = len(names) // 2
    for key in keys:
        anomalous = () if born is None or (key.step or 0) < born else (middle, middle + 1)
        made = make_tables(key, names, anomalous, seed)
        if not has_elements:
            _set(made.labels, LABELS, "kind", RowKind.STATISTICS.value)
            made.digest[:] = 0
        # As in healthy tensors: nothing vanishes.
        norm = FIELDS.index("l2_norm")
        made.statistics[:, norm] = np.abs(made.statistics[:, norm]) + 1
        commit_tables(objects, key, made, rules=rules)


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
