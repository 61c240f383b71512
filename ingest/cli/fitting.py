"""What fits a terminal: the columns of a table that stay, how long its names may be, and where lines break.

Only a terminal gets less than everything; see `printing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest.reader.text import shortened

if TYPE_CHECKING:
    from rich.text import Text

#: Characters between two columns of a table.
GAP = 2
#: Characters that a name keeps as long as other columns can be left out, and at least.
_COMFORTABLE, _LEAST = 32, 24
#: Headings of sentences, which break into several lines if they come last: their middle may say what to do.
_PROSE = {"description", "detail", "problem", "reason", "why"}
#: What is in a cell that says nothing.
_NOTHING = {"", "-"}
#: A word with the space that follows it, or what a line begins with.
_WORDS = re.compile(r"^\s+|\S+\s*")


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table as it fits a terminal.

    Attributes:
        columns: the headings that stay.
        rows: the cells that stay, names without their middle where it is too long; prose in the last column
            may have several lines.
        same: left-out columns with the value that all rows have there, if it says anything.
        left_out: left-out columns whose values are not shown.
    """

    columns: list[str]
    rows: list[list[str | Text]]
    same: dict[str, str]
    left_out: list[str]


def fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    right: Sequence[str],
    spare: Sequence[str],
    width: int,
) -> FittedTable:
    """Shorten a table to `width` characters, if it can be made to fit.

    First, columns that have one value in all rows go, for it can be told in a line; then those of `spare`, in
    their order; then the middle of long names. Prose in the last column goes on in further lines.

    Args:
        columns: the headings.
        rows: the cells of each row, safe to print.
        right: the headings of numbers: their cells are never shortened.
        spare: the headings of columns that may be left out, the first of them first.
        width: characters of the terminal.
    """
    widths = dict(zip(columns, cell_widths(columns, rows), strict=True))
    texts = [
        column
        for place, column in enumerate(columns)
        if column not in right and all(isinstance(row[place], str) for row in rows)
    ]
    stay = list(columns)

    def lacks_room(least: int) -> bool:
        needed = sum(min(widths[column], least) if column in texts else widths[column] for column in stay)
        return needed + GAP * (len(stay) - 1) > width

    constant = _constant(columns, rows)
    same: dict[str, str] = {}

    def worth(column: str) -> tuple[bool, bool, int]:
        return constant[column] not in _NOTHING, column not in spare, columns.index(column)

    for column in sorted(constant, key=worth):
        if len(stay) > 1 and lacks_room(_COMFORTABLE):
            stay.remove(column)
            if constant[column] not in _NOTHING:
                same[column] = constant[column]
    left_out = []
    for column in spare:
        if column in stay and lacks_room(_COMFORTABLE):
            stay.remove(column)
            left_out.append(column)
    places = [columns.index(column) for column in stay]
    kept = [[row[place] for place in places] for row in rows]
    _shorten(stay, kept, [column for column in stay if column in texts], width)
    return FittedTable(stay, kept, same, left_out)


def _constant(columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> dict[str, str]:
    """Return the columns of a table of several rows that have the same text in all of them, and that text."""
    if len(rows) < 2:
        return {}
    values: dict[str, set[str]] = {
        column: {str(row[place]) for row in rows} for place, column in enumerate(columns)
    }
    return {column: value for column, (value, *others) in values.items() if not others}


def _shorten(columns: Sequence[str], rows: list[list[str | Text]], texts: Sequence[str], width: int) -> None:
    """Shorten or wrap the widest texts in place, so that the table fits, but none of them below `_LEAST`."""
    widths = dict(zip(columns, cell_widths(columns, rows), strict=True))
    room = width - GAP * (len(columns) - 1) - sum(widths[column] for column in columns if column not in texts)
    # The limit at which all texts fit: those that are shorter than their share leave room to the others.
    limit, longer = room, sorted(texts, key=widths.__getitem__)
    while longer and widths[longer[0]] <= (limit := room // len(longer)):
        room -= widths[longer.pop(0)]
    limit = max(limit, _LEAST)
    for column in longer:
        if widths[column] > limit:
            is_prose = column in _PROSE and column == columns[-1]
            _narrow(rows, columns.index(column), limit, is_prose=is_prose)


def _narrow(rows: list[list[str | Text]], place: int, width: int, *, is_prose: bool) -> None:
    cells = [str(row[place]) for row in rows]
    if is_prose:
        narrow = ["\n".join(wrapped(cell, width, indent=0)) for cell in cells]
    else:
        narrow = shortened(cells, width)
    for row, text in zip(rows, narrow, strict=True):
        row[place] = text


def cell_widths(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> list[int]:
    """Return how wide each column of a table is, in characters of a terminal."""
    widths = [len(column) for column in columns]
    for row in rows:
        widths = [max(width, cell_width(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def cell_width(cell: str | Text) -> int:
    """Return how many characters of a terminal a text takes."""
    text = cell if isinstance(cell, str) else cell.plain
    if "\n" in text:
        return max(map(cell_width, text.split("\n")))
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # deferred: takes 0.01 s, for names that are not ASCII

    return cell_len(text)


def wrapped(line: str, width: int, indent: int | None = None) -> list[str]:
    """Return a line of prose in lines of at most `width` characters, except where a name is longer.

    Words are never broken: a terminal breaks a name that is wider than itself, and copies it as one.

    Args:
        line: the line.
        width: characters of the terminal.
        indent: how far further lines stand to the right; None: two characters more than the first.
    """
    if len(line) <= width:
        return [line]
    hanging = " " * (len(line) - len(line.lstrip()) + 2 if indent is None else indent)
    lines = [""]
    for part in _WORDS.findall(line):
        fits = len(lines[-1]) + len(part.rstrip()) <= width or len(hanging) + len(part.rstrip()) > width
        if fits or not lines[-1].strip():
            lines[-1] += part
        else:
            lines.append(hanging + part)
    return [text.rstrip() for text in lines]
