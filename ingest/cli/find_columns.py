"""The columns of `find`: which there are, in which order tensors come, and how a cell is printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ingest.reader.tensor import TENSOR_FIELDS, Tensor
from ingest.reader.text import number_text, shape_text
from workers.arrays.statistics import COUNT_FIELDS, FIELDS
from workers.errors import UsageError
from workers.rules.names import near

#: The columns of a tensor: the keys of its JSON.
TENSOR_COLUMNS = tuple(dict.fromkeys((*TENSOR_FIELDS, "shape", "device_shape", *FIELDS)))


@dataclass(frozen=True, slots=True)
class SortColumn:
    """A column to sort by."""

    name: str
    is_descending: bool


def parse_columns(text: str, known: Sequence[str]) -> list[str]:
    """Return the columns of a list such as `name,max`.

    Raises:
        UsageError: one of them does not exist, or the list is empty.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        _check(name, known, "--columns")
    if not names:
        raise UsageError("--columns names no column", hint="For example: --columns rank,step,name,max")
    return names


def parse_order(text: str, known: Sequence[str]) -> list[SortColumn]:
    """Return the columns of a list such as `-l2_norm,name`.

    Raises:
        UsageError: one of them does not exist, or the list is empty.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    columns = [SortColumn(name.removeprefix("-"), name.startswith("-")) for name in names]
    for column in columns:
        _check(column.name, known, "--sort")
    if not columns:
        raise UsageError("--sort names no column", hint="For example: --sort=-l2_norm,name")
    return columns


def _check(name: str, known: Sequence[str], option: str) -> None:
    if name not in known:
        nearest = near(name, known)
        hint = f"Did you mean {' or '.join(nearest[:3])}?" if nearest else f"Columns: {', '.join(known)}."
        raise UsageError(f"{option}: {name!r} is not a column", hint=hint)


def in_order(tensors: Sequence[Tensor], order: Sequence[SortColumn]) -> list[Tensor]:
    """Return tensors by these columns; unknown values come last, and equal ones stay in their order."""
    rows = list(tensors)
    for column in reversed(order):
        values = {id(tensor): value_of(tensor, column.name) for tensor in rows}
        known = [tensor for tensor in rows if not _is_unknown(values[id(tensor)])]
        unknown = [tensor for tensor in rows if _is_unknown(values[id(tensor)])]
        known.sort(key=lambda tensor: values[id(tensor)], reverse=column.is_descending)
        rows = known + unknown
    return rows


def value_of(tensor: Tensor, column: str) -> Any:
    """Return the value of a tensor in a column, as in its JSON."""
    if column in COUNT_FIELDS:
        count = getattr(tensor.statistics, column)
        return count if math.isnan(count) else int(count)
    return getattr(tensor.statistics if column in FIELDS else tensor, column)


def cell_text(value: Any) -> str:
    """Return the text of a value in a table."""
    if value is None or isinstance(value, float):
        return number_text(value)
    return shape_text(value) if isinstance(value, tuple | list) else str(value)


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
