"""Calls of operators, and the content of their tensors, in the index of one step.

Tensors of equal content are treated as one tensor that passed from its writer to its readers.
"""

from __future__ import annotations

import sys
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.indexed_step import IndexedStep
from workers.arrays.statistics import FIELDS
from workers.store.attributes import record_of
from workers.store.model import RowKind
from workers.store.tables import Tables

#: Equal for tensors of equal content: made of the digest, or of the statistics without one.
Content: TypeAlias = tuple[object, ...]


class CallKey(NamedTuple):
    """Identifies a call of an operator on several ranks and in several steps."""

    net: str
    graph: str
    op_type: str
    op_name: str
    occurrence: int


def tensor_rows(tables: Tables) -> npt.NDArray[np.int64]:
    """Return the rows of all tensors, those of which only statistics were dumped included, (row,)."""
    kinds = tables.label("kind")
    return np.flatnonzero((kinds == RowKind.TENSOR.value) | (kinds == RowKind.STATISTICS.value))


def is_in_order(tables: Tables, rows: npt.NDArray[np.int64]) -> bool:
    """Return whether the dump has the order in which its operators ran."""
    return any(bool((tables.number(name)[rows] >= 0).any()) for name in ("timestamp", "sequence"))


def key_of(tables: Tables, row: int) -> CallKey:
    """Return the call that a tensor belongs to."""
    # The same few names occur in every step of every rank.
    net, graph, op_type, op_name = (
        sys.intern(str(tables.label(name)[row])) for name in ("net", "graph", "op_type", "op_name")
    )
    return CallKey(net, graph, op_type, op_name, int(tables.number("occurrence")[row]))


def told_hash(tables: Tables, row: int) -> str:
    """Return the hash that a log tells of a tensor, with its kind: `l1:1.5`, `xor:77`; "" if it tells none.

    It is not a digest: the sum of absolute values stays the same if elements change places.
    """
    tensor = record_of(tables, row).get("tensor")
    told = tensor.get("hash") if isinstance(tensor, dict) else None
    return told if isinstance(told, str) else ""


def content_of(step: IndexedStep, row: int) -> Content:
    """Return the content of a tensor; without a digest and with few statistics, one like no other."""
    tables = step.tables
    dtype = sys.intern(str(tables.label("dtype")[row]))
    if tables.label("kind")[row] == RowKind.TENSOR.value:
        return dtype, tables.digest[row].tobytes()
    told = told_hash(tables, row)
    if told:
        return "hash", str(tables.label("net")[row]), told
    statistics = tuple(None if np.isnan(value) else float(value) for value in tables.statistics[row])
    known = sum(value is not None for value in statistics[FIELDS.index("nan_count") :])
    # If little is known, equal statistics prove nothing, so this content differs from that of all tensors.
    return (dtype.lower(), statistics) if known > 1 else (dtype, step.key, row)
