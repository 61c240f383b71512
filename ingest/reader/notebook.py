"""What a notebook shows of a value: small tables of HTML.

Names come from dumps and may hold anything, so everything is escaped. A table has at most `MAX_ROWS` rows and
`MAX_NBYTES` bytes, however long the names are; the heading tells how many rows there are.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from ingest.reader.text import printable

#: Rows of one table.
MAX_ROWS = 20
#: The size of one value in a notebook, in bytes of UTF-8.
MAX_NBYTES = 32 * 1024
#: Characters of one cell. Names of tensors differ at their end, so the middle of a longer one is left out.
MAX_CELL = 100
#: Characters of a remark.
MAX_REMARK = 400
#: What the frame of a table, its heading and its last line take at most.
_FRAME_NBYTES = 6 * 1024
_CELL = '<td style="text-align:left;white-space:nowrap">'


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    total: int,
    remark: str = "",
) -> str:
    """Return a table of the first rows.

    Args:
        title: the heading.
        columns: the names of the columns.
        rows: the cells of each row; not more than `MAX_ROWS` are taken.
        total: how many rows there are altogether.
        remark: a line below the heading; up to `MAX_REMARK` characters of it.
    """
    left = MAX_NBYTES - _FRAME_NBYTES
    lines: list[str] = []
    for row, _ in zip(rows, range(MAX_ROWS), strict=False):
        line = "<tr>" + "".join(f"{_CELL}{_escaped(cell)}</td>" for cell in row) + "</tr>"
        left -= len(line.encode())
        if left < 0:
            break
        lines.append(line)
    head = "".join(f'<th style="text-align:left">{_escaped(column)}</th>' for column in columns)
    more = total - len(lines)
    rest = f"<div>{more} more</div>" if more else ""
    below = f"<div>{html.escape(printable(remark[:MAX_REMARK]))}</div>" if remark else ""
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>" if lines else ""
    return f"<div><strong>{_escaped(title)}</strong>{below}{body}{rest}</div>"


def facts(title: str, values: Mapping[str, object]) -> str:
    """Return a table of two columns: what is known, and its value."""
    return table(title, ("", ""), values.items(), total=len(values))


def block(text: str) -> str:
    """Return text as it is printed in a terminal, up to `MAX_NBYTES`."""
    shown: list[str] = []
    left = MAX_NBYTES - _FRAME_NBYTES
    lines = text.split("\n")
    for line in lines:
        escaped = html.escape(printable(line))
        left -= len(escaped.encode()) + 1
        if left < 0:
            break
        shown.append(escaped)
    rest = f"\n{len(lines) - len(shown)} more lines" if len(shown) < len(lines) else ""
    return "<pre>" + "\n".join(shown) + rest + "</pre>"


def _escaped(value: object) -> str:
    text = printable(str(value))
    if len(text) > MAX_CELL:
        text = f"{text[: MAX_CELL // 2 - 2]}...{text[-MAX_CELL // 2 + 1 :]}"
    return html.escape(text)
