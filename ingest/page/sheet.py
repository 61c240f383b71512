"""Windows on the values of a tensor, which is seen as a table: its last axis across, the others down."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.tensor import Tensor
from workers.errors import UsageError

#: The most values of one window.
MAX_VALUES = 20_000
#: Elements of neighbouring rows that are read at once, at most.
_READ_AT_ONCE = 1 << 22
#: The window that is shown by default: it fits on a screen.
SHOWN_ROWS, SHOWN_COLUMNS = 20, 10
#: `20:40`, `20:`, `:40`, `:`, or `20` alone.
_RANGE = re.compile(r"(\d{1,18})?(:)?((?<=:)\d{1,18})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sheet:
    """How a tensor is seen as a table."""

    rows: int
    columns: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Sheet:
        """Return the table of a shape; a vector is one column."""
        if len(lengths) < 2:
            return cls(math.prod(lengths), 1)
        return cls(math.prod(lengths[:-1]), lengths[-1])


def window(
    tensor: Tensor,
    row: int = 0,
    column: int = 0,
    rows: int = SHOWN_ROWS,
    columns: int = SHOWN_COLUMNS,
) -> dict[str, Any]:
    """Return a window on the values of a tensor, seen as a table: its last axis across, the others down.

    Reads what is in its rows alone; of rows with millions of elements, its columns alone. The values are
    texts of eight significant digits, in `values` by row and column; `rows` and `columns` are the names of
    these, `row` and `column` the numbers of the first ones.

    Args:
        tensor: the tensor.
        row: the first row.
        column: the first column.
        rows: how many rows, at most: the window ends with the tensor.
        columns: how many columns, at most.

    Raises:
        UsageError: it is outside of the tensor, or has over 20,000 values; or the tensor has no values.
        DamagedStore: it is damaged.
    """
    sheet = Sheet.of(tensor.shape)
    if rows * columns > MAX_VALUES:
        raise UsageError(f"{rows} x {columns} values at once", hint=f"At most {MAX_VALUES}.")
    if row >= max(sheet.rows, 1) or column >= max(sheet.columns, 1):
        raise UsageError(f"{tensor.name} does not have row {row}, column {column}")
    values = _block(
        tensor,
        range(row, min(row + rows, sheet.rows)),
        range(column, min(column + columns, sheet.columns)),
    )
    return {
        "row": row,
        "column": column,
        "rows": [_name(tensor.shape, number) for number in range(row, row + values.shape[0])],
        "columns": [str(number) for number in range(column, column + values.shape[1])],
        "values": [[text_of(value) for value in line] for line in values.tolist()],
    }


def parse_window(text: str, lengths: Sequence[int]) -> tuple[int, int, int, int]:
    """Return first row, first column, rows and columns of `ROWS,COLUMNS`, such as `20:40,:10`.

    Raises:
        UsageError: it is not a window.
    """
    sheet = Sheet.of(lengths)
    words = text.split(",")
    matches = [_RANGE.fullmatch(word.strip()) for word in words]
    if len(matches) != 2 or not all(matches):
        raise UsageError(
            f"{text!r} is not a window", hint="ROWS,COLUMNS such as '20:40,:10' of the tensor as a table."
        )
    (row, rows), (column, columns) = (
        _extent(match, length)
        for match, length in zip(filter(None, matches), (sheet.rows, sheet.columns), strict=True)
    )
    return row, column, rows, columns


def _extent(match: re.Match[str], length: int) -> tuple[int, int]:
    """Return the first of a range and how many it has, at least one."""
    begin = int(match[1] or 0)
    end = int(match[3]) if match[3] else (length if match[2] else begin + 1)
    return begin, max(end - begin, 1)


def _block(tensor: Tensor, rows: range, columns: range) -> npt.NDArray[Any]:
    """Return a part of the table, (row, column)."""
    sheet = Sheet.of(tensor.shape)
    if not tensor.has_ranges:
        block = tensor[..., columns.start : columns.stop] if len(tensor.shape) > 1 else tensor.read()
        return np.reshape(block, (sheet.rows, len(columns)))[rows.start : rows.stop]
    at_once = max(_READ_AT_ONCE // max(sheet.columns, 1), 1)
    groups = [rows[first : first + at_once] for first in range(0, len(rows), at_once)] or [rows]
    return np.concatenate([_part_of_rows(tensor, sheet.columns, group, columns) for group in groups])


def _part_of_rows(tensor: Tensor, width: int, rows: range, columns: range) -> npt.NDArray[Any]:
    """Return a part of neighbouring rows of this width; of a single row, only that part is read."""
    if len(rows) == 1:
        begin = rows.start * width
        return tensor.elements(begin + columns.start, begin + columns.stop).reshape(1, len(columns))
    flat = tensor.elements(rows.start * width, rows.stop * width)
    return flat.reshape(len(rows), width)[:, columns.start : columns.stop]


def text_of(value: Any) -> str:
    """Return a value as a short text: numbers of eight significant digits, bytes as hexadecimal digits."""
    if isinstance(value, tuple | list | np.ndarray):  # a tuple has the fields of a structure
        return f"({', '.join(map(text_of, value))})"
    if isinstance(value, bool | int | str | date | timedelta):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if value is None:
        return "NaT"
    if isinstance(value, complex):
        return f"{value:.5g}"
    return f"{float(value):.8g}"


def _name(lengths: Sequence[int], row: int) -> str:
    """Return the index of a row in all axes but the last."""
    if len(lengths) < 2:
        return str(row)
    return ", ".join(str(int(place)) for place in np.unravel_index(row, tuple(lengths[:-1])))
