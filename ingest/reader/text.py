"""Values from a dump as text that is safe to print, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from workers.model import counted

if TYPE_CHECKING:  # it imports msgspec, and --help needs none of it
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
    """Return the names that have the same short name, in groups of two or more."""
    groups: dict[str, list[str]] = {}
    for name, text in short.items():
        groups.setdefault(text, []).append(name)
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
