"""Values from a dump as text that is safe to print, as plain values of JSON, and as small tables of HTML.

Names come from dumps and may hold anything, so everything is escaped. A table of a notebook has at most
`MAX_ROWS` rows and `MAX_NBYTES` bytes, however long the names are; its heading tells how many rows there are.
"""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from workers.model import counted, grouped

if TYPE_CHECKING:
    from workers.model import StepKey
    from workers.store.model import CommitSummary


__all__ = [
    "cell_text",
    "counted",
    "counted_steps",
    "files_with_problems",
    "number_text",
    "percentile_name",
    "printable",
    "shape_text",
    "shortened",
    "table_lines",
    "value_text",
]


def percentile_name(percent: float) -> str:
    """Return the name of a percentile, such as `p99.9`; another percentage has another name."""
    return f"p{float(percent)!r}".removesuffix(".0")


def printable(text: str) -> str:
    """Return text from a dump with escapes for every character that a terminal would obey or cannot show."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def number_text(value: float | None) -> str:
    """Return a statistic with six significant digits; `-` if it is None or NaN."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.6g}"


def value_text(value: float) -> str:
    """Return an element as people read it: `NaN`, `Inf`, `-Inf`, or six significant digits."""
    if math.isfinite(value):
        return f"{value:.6g}"
    return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")


def cell_text(value: object) -> str:
    """Return a plain value as a table shows it."""
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return shape_text(value)
    return "-" if value is None else str(value)


def shape_text(shape: Sequence[int] | None) -> str:
    """Return a shape such as `2x3`; `()` for a scalar, "" for None."""
    return "" if shape is None else "x".join(map(str, shape)) or "()"


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


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most about `width` characters; names that differ stay different.

    The middle of a long name is left out. If that makes names equal, they begin where they differ instead; if
    they still are, they are numbered.
    """
    short = {name: _without_middle(name, width) for name in names}
    for group in _equal_groups(short):
        begin = max(_common_prefix(group) - width // 8, 0)
        short.update({name: _without_begin(name, begin, width) for name in group})
    for group in _equal_groups(short):
        room = width - len(f" ({len(group)})")
        short.update(
            {name: f"{_without_middle(name, room)} ({number})" for number, name in enumerate(group, 1)}
        )
    return [short[name] for name in names]


def _without_middle(name: str, width: int) -> str:
    tail = (width - 3) // 2
    return name if len(name) <= width else f"{name[: width - 3 - tail]}...{name[-tail:]}"


def _without_begin(name: str, begin: int, width: int) -> str:
    before = "..." * (begin > 0)
    return before + _without_middle(name[begin:], width - len(before))


def _equal_groups(short: Mapping[str, str]) -> list[list[str]]:
    groups = grouped((text, name) for name, text in short.items())
    return [group for group in groups.values() if len(group) > 1]


def _common_prefix(names: Sequence[str]) -> int:
    first, last = min(names), max(names)
    return next(
        (n for n, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )


def files_with_problems(summary: CommitSummary) -> str:
    """Return how many files of a step could not be taken as tensors, by reason; "" if there are none."""
    counts = {
        "quarantined": summary.quarantined,
        "with names that are not understood": summary.unparsed,
    }
    texts = [f"{counted(count, 'file')} {problem}" for problem, count in counts.items() if count]
    if summary.skipped:
        texts.append(f"{counted(summary.skipped, 'path')} left out or taken in part")
    return ", ".join(texts)


def counted_steps(keys: Collection[StepKey]) -> str:
    """Return how many steps these are, each counted once for each rank that has it: `6 steps of 2 ranks`."""
    ranks = {key.rank for key in keys}
    of_ranks = f" of {len(ranks)} ranks" if len(ranks) > 1 else ""
    return f"{counted(len(keys), 'step')}{of_ranks}"


class Plain:
    """A dataclass that JSON has as an object of its fields."""

    __slots__ = ()

    also: ClassVar[tuple[str, ...]] = ()
    """Properties that JSON has besides the fields."""
    hidden: ClassVar[tuple[str, ...]] = ()
    """Fields that it does not have."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        names = [field.name for field in fields(self) if field.name not in self.hidden]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in (*names, *self.also)}


def plain(value: Any) -> Any:
    """Return a value as JSON has it; NaN and infinities, which become null there, stay."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return [plain(member) for member in value]
    return value


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


def html_table(
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


def html_facts(title: str, values: Mapping[str, object]) -> str:
    """Return a table of two columns: what is known, and its value."""
    return html_table(title, ("", ""), values.items(), total=len(values))


def html_block(text: str) -> str:
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
