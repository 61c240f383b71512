"""Windows on the values of a tensor, which is seen as a table: its last axis across, the others down.

Also the values of a tensor as a picture.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.reader.tensor import Tensor
from workers.arrays.statistics import is_complex, widened_complex
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
    begin = int(match[1] or 0)
    end = int(match[3]) if match[3] else (length if match[2] else begin + 1)
    return begin, max(end - begin, 1)


def _block(tensor: Tensor, rows: range, columns: range) -> npt.NDArray[Any]:
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
    if len(lengths) < 2:
        return str(row)
    return ", ".join(str(int(place)) for place in np.unravel_index(row, tuple(lengths[:-1])))


#: The most pixels along one side; more values share a pixel.
MAX_SIDE = 320
_NAN, _POS, _NEG = 253, 254, 255
_STEPS = 253
#: From low to high: dark blue over teal to yellow, and blue over white to brown for values of both signs.
_ONE_SIGN = ((38, 24, 87), (49, 72, 158), (41, 120, 160), (42, 161, 137), (122, 200, 92), (247, 229, 90))
_BOTH_SIGNS = ((24, 60, 138), (92, 146, 210), (244, 244, 240), (224, 150, 74), (120, 62, 12))
_SPECIAL = ((225, 0, 84), (255, 106, 0), (130, 0, 200))


class Image(NamedTuple):
    """A picture of a matrix."""

    url: str
    width: int
    height: int
    low: float
    high: float
    has_both_signs: bool


def as_float(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values as float64; of complex numbers, their absolute values."""
    if is_complex(values.dtype):
        values = np.abs(widened_complex(values))
    converted: npt.NDArray[np.float64] = np.asarray(values).astype(np.float64)
    return converted


def image_of(values: npt.NDArray[np.float64]) -> Image | None:
    """Return the picture of values of any shape, as a matrix; None if there are fewer than two.

    A pixel of several values is NaN or Inf if any of them is, else their mean.
    """
    if values.size < 2:
        return None
    pixels = _shrunk(_shrunk(_as_matrix(values), 0), 1)
    finite = pixels[np.isfinite(pixels)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    both = low < 0 < high
    begin, end = (-max(-low, high), max(-low, high)) if both else (low, high)
    span = end / 2 - begin / 2 or 1.0
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(pixels), (pixels / 2 - begin / 2) / span, 0)
    index = np.clip(np.round(share * (_STEPS - 1)), 0, _STEPS - 1).astype(np.uint8)
    index[np.isnan(pixels)], index[np.isposinf(pixels)], index[np.isneginf(pixels)] = _NAN, _POS, _NEG
    data = base64.b64encode(_png(index, _BOTH_SIGNS if both else _ONE_SIGN)).decode()
    return Image(f"data:image/png;base64,{data}", index.shape[1], index.shape[0], low, high, both)


def _as_matrix(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values as a matrix that is not too long: the last axis across; a vector wraps."""
    if values.ndim >= 2 and values.shape[-1] > 1:
        return values.reshape(-1, values.shape[-1])
    across = values.size if values.size <= 64 else math.ceil(math.sqrt(values.size))
    return np.pad(values.reshape(-1), (0, -values.size % across)).reshape(-1, across)


def _shrunk(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Return the means of neighbours along an axis, at most `MAX_SIDE`; the last of them may be fewer."""
    length = values.shape[axis]
    starts = np.arange(0, length, math.ceil(length / MAX_SIDE))
    if starts.size == length:
        return values
    counts = np.diff(starts, append=length)
    with np.errstate(invalid="ignore", over="ignore"):
        # Divided first, or large numbers would become infinite. The mean of NaN is NaN, and that of Inf is
        # Inf: nothing hides behind its neighbours.
        shares = values / np.expand_dims(np.repeat(counts, counts), 1 - axis)
        means: npt.NDArray[np.float64] = np.add.reduceat(shares, starts, axis=axis)
        return means


def _png(index: npt.NDArray[np.uint8], stops: tuple[tuple[int, int, int], ...]) -> bytes:
    """Return a picture whose pixels are places in a palette between these colours, (row, column)."""
    places = np.linspace(0, len(stops) - 1, _STEPS)
    colours = [np.interp(places, range(len(stops)), part) for part in zip(*stops, strict=True)]
    palette = np.round(np.stack(colours, axis=1)).astype(np.uint8).tobytes() + bytes(sum(_SPECIAL, ()))
    height, width = index.shape
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette),
        (b"IDAT", zlib.compress(np.pad(index, ((0, 0), (1, 0))).tobytes(), 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
