"""What commands print: tables, JSON and messages. Answers go to stdout, messages to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ingest.reader.text import counted, number_text, printable, shape_text, shortened
from workers.store import strict_json

__all__ = [
    "counted",
    "err",
    "is_terminal",
    "limit_of",
    "limited",
    "number_text",
    "out",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "say",
    "say_left_out",
    "say_rest",
    "shape_text",
    "short_name",
    "step_text",
]

err = Console(stderr=True, highlight=False)
out = Console(highlight=False)

_Row = TypeVar("_Row")
_MAX_NAME = 100
#: Characters that a terminal leaves to a name, at least.
_MIN_NAME = 24
#: Characters between two columns of a table.
_GAP = 2


def print_json(answer: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print one object, or an array of objects with one object per line.

    It is strict JSON: NaN and infinities become null, however deeply they are nested.
    """
    if isinstance(answer, Mapping):
        sys.stdout.write(strict_json.dumps(answer) + "\n")
        return
    rows = ",\n ".join(strict_json.dumps(row) for row in answer)
    sys.stdout.write(f"[{rows}]\n")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Print a table to stdout, as wide as its content: a truncated cell would mislead.

    On a terminal that is narrower, the middle of long names is left out; names that differ stay different.

    Args:
        columns: the headings.
        rows: the cells of each row. A `Text` is printed with its colours and must be safe to print.
        right: the headings of the columns that are aligned to the right.
    """
    shown = [[cell if isinstance(cell, Text) else printable(cell) for cell in row] for row in rows]
    if is_terminal():
        _fit(columns, shown, right, Console().width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="fold"
        )
    for row in shown:
        table.add_row(*(cell if isinstance(cell, Text) else escape(cell) for cell in row))
    console = Console(highlight=False, width=10_000)
    with console.capture() as capture:
        console.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def _fit(columns: Sequence[str], rows: list[list[str | Text]], right: Sequence[str], width: int) -> None:
    """Shorten the widest column of text in place, so that the table fits, but not below `_MIN_NAME`."""
    widths = [
        max([len(column), *(cell_len(str(row[place])) for row in rows)])
        for place, column in enumerate(columns)
    ]
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    names = [
        place
        for place, column in enumerate(columns)
        if column not in right and all(isinstance(row[place], str) for row in rows)
    ]
    if excess <= 0 or not names:
        return
    widest = max(names, key=widths.__getitem__)
    limit = max(widths[widest] - excess, _MIN_NAME)
    for row, name in zip(rows, shortened([str(row[widest]) for row in rows], limit), strict=True):
        row[widest] = name


def print_line(text: str) -> None:
    """Print one line to stdout."""
    sys.stdout.write(printable(text) + "\n")


def say(message: str, *, label: str = "", style: str = "yellow") -> None:
    """Print a message to stderr, after a label such as `note` in colour. The message is not rich markup."""
    before = f"[{style}]{label}:[/] " if label else ""
    text = "\n".join(map(printable, message.split("\n")))
    err.print(f"{before}{escape(text)}", soft_wrap=True)


def say_left_out(left_out: Iterable[object]) -> None:
    """Print to stderr which steps an answer does not cover, and why."""
    for step in left_out:
        say(str(step), label="left out")


def say_rest(total: int, shown: int, what: str) -> None:
    """Print to stderr how many rows there are if `--limit` has cut them off."""
    if shown < total:
        say(f"{total} {what}, the first {shown} shown (--limit 0: all)")


def is_terminal() -> bool:
    """Return whether answers go to a terminal: only there may they be shortened for the eye."""
    return sys.stdout.isatty()


def limit_of(limit: int | None, on_terminal: int, *, as_json: bool = False) -> int:
    """Return the limit that the user gave, or else that of a terminal; elsewhere, and in JSON, 0: none."""
    if limit is not None:
        return limit
    return on_terminal if is_terminal() and not as_json else 0


def limited(rows: Sequence[_Row], limit: int) -> Sequence[_Row]:
    """Return the first rows; all of them with limit 0."""
    return rows[:limit] if limit else rows


def step_text(step: int | None) -> str:
    """Return a step number; `run` for files that belong to no step."""
    return "run" if step is None else str(step)


def short_name(name: str) -> str:
    """Return the name of a tensor; on a terminal without its middle if it is longer than 100 characters.

    Everywhere else it is whole: what reads it gives it to another command.
    """
    return name if len(name) <= _MAX_NAME or not is_terminal() else f"{name[:48]}...{name[-49:]}"
