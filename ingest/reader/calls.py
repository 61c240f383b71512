"""Calls of operators, and the content of their tensors, in the index of one step.

Tensors of equal content are treated as one tensor that passed from its writer to its readers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import FIELDS
from workers.store.model import RowKind
from workers.store.tables import Tables, record_of

if TYPE_CHECKING:
    from ingest.reader.step import Step


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
    return keys_of(tables, np.array([row]))[0]


def keys_of(tables: Tables, rows: npt.NDArray[np.int64]) -> list[CallKey]:
    """Return the calls that tensors belong to, (row,)."""
    # The same few names occur in every step of every rank.
    labels = (map(sys.intern, _texts(tables, name, rows)) for name in ("net", "graph", "op_type", "op_name"))
    return list(map(CallKey, *labels, tables.number("occurrence")[rows].tolist()))


def told_hash(tables: Tables, row: int) -> str:
    """Return the hash that a log tells of a tensor, with its kind: `l1:1.5`, `xor:77`; "" if it tells none.

    It is not a digest: the sum of absolute values stays the same if elements change places.
    """
    tensor = record_of(tables, row).get("tensor")
    told = tensor.get("hash") if isinstance(tensor, dict) else None
    return told if isinstance(told, str) else ""


def content_of(step: Step, row: int) -> Content:
    """Return the content of a tensor; without a digest and with few statistics, one like no other."""
    return contents_of(step, np.array([row]))[0]


def contents_of(step: Step, rows: npt.NDArray[np.int64]) -> list[Content]:
    """Return the contents of tensors, (row,); see `content_of`."""
    tables = step.tables
    dtypes = list(map(sys.intern, _texts(tables, "dtype", rows)))
    width = tables.digest.shape[1]
    digests = tables.digest[rows].tobytes()
    contents: list[Content] = [
        (dtype, digests[place * width : (place + 1) * width]) for place, dtype in enumerate(dtypes)
    ]
    is_dumped = tables.label("kind")[rows] == RowKind.TENSOR.value
    has_record = (tables.label("record")[rows] != "").tolist()
    for place, known in _known_statistics(tables, rows, np.flatnonzero(~is_dumped)):
        row, dtype = int(rows[place]), dtypes[place]
        told = told_hash(tables, row) if has_record[place] else ""
        if told:
            contents[place] = "hash", str(tables.label("net")[row]), told
        else:
            # If little is known, equal statistics prove nothing: this content differs from all others.
            contents[place] = (dtype, step.key, row) if known is None else (dtype.lower(), known)
    return contents


def _known_statistics(
    tables: Tables, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64]
) -> Iterator[tuple[int, tuple[float | None, ...] | None]]:
    """Yield these places among rows, each with its statistics; None if too few of them are known."""
    statistics = tables.statistics[rows[places]]
    is_known = ~np.isnan(statistics)
    is_enough = is_known[:, FIELDS.index("nan_count") :].sum(axis=1) > 1
    # NaN differs from itself, and None does not.
    values = statistics.astype(object)
    values[~is_known] = None
    for place, of_row, enough in zip(places.tolist(), values.tolist(), is_enough.tolist(), strict=True):
        yield place, tuple(of_row) if enough else None


def _texts(tables: Tables, name: str, rows: npt.NDArray[np.int64]) -> list[str]:
    """Return a text column of rows."""
    return list(map(str, tables.label(name)[rows].tolist()))
