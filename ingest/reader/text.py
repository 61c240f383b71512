"""Values from a dump as text that is safe to print, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


def printable(text: str) -> str:
    """Return text from a dump with escapes for every character that a terminal would obey or cannot show."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def number_text(value: float | None) -> str:
    """Return a statistic with six significant digits; `-` if it is None or NaN."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.6g}"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape such as `2x3`; `()` for a scalar."""
    return "x".join(map(str, shape)) or "()"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 tensor`, `2 tensors`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a heading and a line for each row, with cells of equal width; `right` names numbers."""
    table = [columns, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()
