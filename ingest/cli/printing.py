"""What commands print: tables, JSON and messages. Answers go to stdout, messages to stderr.

Only a terminal gets less than everything: `fitted` says which columns of a table stay, how long its names may
be, and where lines break.

Small questions are answered in a third of a second, of which the import of rich would take a tenth: what it
draws, such as the progress of a long command, imports it when it is used.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ingest.questions.question import Drawing, Rows
from ingest.reader.choice import format_ranges
from ingest.reader.output_file import output_file
from ingest.reader.text import printable, shortened
from workers.errors import UsageError
from workers.store import strict_json

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

    from ingest.steps.decide import StepRow


#: Characters in a line of a terminal that does not say how many it has.
_WIDTH = 80
#: How a terminal may print a text.
Style = Literal["yellow", "red", "bold red", "bold green", "bold", "dim"]
#: What makes a terminal do so, and what ends that.
_STYLES: Mapping[Style, str] = {
    "yellow": "\x1b[33m",
    "red": "\x1b[31m",
    "bold red": "\x1b[1;31m",
    "bold green": "\x1b[1;32m",
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
}
_PLAIN = "\x1b[0m"


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
    spare: Sequence[str] = (),
) -> None:
    """Print a table to stdout, as wide as its content: a truncated cell would mislead.

    A terminal that is narrower gets what fits: a line with what all rows share, fewer columns, of which a
    message names those that are missing, and names without their middle; names that differ stay different.

    Args:
        columns: the headings.
        rows: the cells of each row. A `Text` is printed with its colours and must be safe to print.
        right: the headings of the columns that are aligned to the right.
        spare: the headings that a narrow terminal may lack, the first of them first.
    """
    shown = [[printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    left_out: Sequence[str] = ()
    if is_terminal():
        columns, shown, same, left_out = fitted(
            columns, shown, right=right, spare=spare, width=terminal_width()
        )
        if same:
            shared = "; ".join(f"{name} {value}" for name, value in same.items())
            print_wrapped(f"in all rows: {shared}")
    widths = cell_widths(columns, shown)
    is_right = [column in right for column in columns]
    begin_of_last = "\n" + " " * sum(width + GAP for width in widths[:-1])

    def line_of(cells: Sequence[str | Text]) -> str:
        padded = []
        for cell, width, at_right in zip(cells, widths, is_right, strict=True):
            room = " " * (width - cell_width(cell))
            text = cell if isinstance(cell, str) else _in_colours(cell)
            padded.append(f"{room}{text}" if at_right else f"{text}{room}")
        return (" " * GAP).join(padded).rstrip().replace("\n", begin_of_last)

    lines = [_styled(line_of(columns), "bold", sys.stdout), *map(line_of, shown)]
    sys.stdout.write("\n".join(lines) + "\n")
    if left_out:
        say(f"no room for {', '.join(left_out)}: a wider terminal or a pipe has them")


def _in_colours(text: Text) -> str:
    from rich.console import Console  # deferred: takes 0.03 s, and few tables have colours

    console = Console(highlight=False, width=10_000)
    with console.capture() as capture:
        console.print(text, end="")
    return capture.get()


def print_line(text: str) -> None:
    """Print one line to stdout."""
    sys.stdout.write(printable(text) + "\n")


def print_wrapped(text: str, indent: int | None = None) -> None:
    """Print a line of prose to stdout; on a terminal in as many as it takes, without breaking a word.

    Args:
        text: the line.
        indent: how far the further lines stand to the right; None: a little more than the first.
    """
    line = printable(text)
    lines = wrapped(line, terminal_width(), indent) if is_terminal() else [line]
    sys.stdout.write("\n".join(lines) + "\n")


def say(message: str, *, label: str = "", style: Style = "yellow") -> None:
    """Print a message to stderr, after a label such as `note` in colour."""
    before = _styled(f"{label}:", style, sys.stderr) + " " if label else ""
    text = "\n".join(map(printable, message.split("\n")))
    sys.stderr.write(f"{before}{text}\n")


def _styled(text: str, style: Style, stream: TextIO) -> str:
    is_dumb = os.environ.get("TERM", "") in ("dumb", "unknown")
    if not stream.isatty() or is_dumb or os.environ.get("NO_COLOR"):
        return text
    return f"{_STYLES[style]}{text}{_PLAIN}"


def say_rest(total: int, limit: int, noun: str, every: str = "--limit 0") -> None:
    """Print to stderr how many rows there are if a limit cut some off, and the option that prints all."""
    if 0 < limit < total and noun:
        say(f"{total} {noun}s, the first {limit} shown ({every}: all)")


def status(text: str) -> Status:
    """Return what shows on a terminal that something is being done, for the duration of a block."""
    from rich.console import Console  # deferred: takes 0.03 s

    return Console(stderr=True, highlight=False).status(text)


def is_terminal() -> bool:
    """Return whether answers go to a terminal: only there may they be shortened for the eye."""
    return sys.stdout.isatty()


def terminal_width() -> int:
    """Return how many characters a line of the terminal has, or as many as `COLUMNS` says.

    `shutil.get_terminal_size` asks `sys.__stdout__`, which has no terminal after `prepare_output`.
    """
    if (told := os.environ.get("COLUMNS", "")).isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH


def limit_of(limit: int | None, on_terminal: int | None, *, as_json: bool) -> int:
    """Return the limit that the user gave, or else that of a terminal; elsewhere, and in JSON, 0: none."""
    if limit is not None:
        return limit
    return on_terminal if on_terminal and is_terminal() and not as_json else 0


def step_text(step: int | None) -> str:
    """Return a step number; `run` for files that belong to no step."""
    return "run" if step is None else str(step)


def print_drawing(drawing: Drawing, limit: int) -> None:
    """Print lines that are drawn for the width and the colours of the terminal, or for a file."""
    from rich.console import Console  # deferred: takes 0.03 s

    console = Console(highlight=False, width=10_000)
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    width = terminal_width() if is_terminal() else 10_000
    with console.capture() as capture:
        for line in drawing.lines(width, limit, in_colour):
            console.print(line, soft_wrap=True)
    sys.stdout.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")
    say_rest(drawing.rows, limit, drawing.noun)


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be made, before work begins that takes long.

    Raises:
        UsageError: its directory does not exist, or the path is a directory itself.
    """
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise UsageError(
            f"{path} cannot be written", hint=f"{option} takes the name of a file in an existing directory."
        )


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, and replace an older one. Characters that UTF-8 cannot encode are escaped.

    Raises:
        UsageError: the directory does not exist, or may not be written.
        DumpIngestError: the disk is full, or reports an error.
    """
    with output_file(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))


def write_and_say(path: Path, content: str | bytes) -> None:
    """Write a file as `write_file` does, and say so on stderr."""
    write_file(path, content)
    say(f"wrote {path}")


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


def fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    right: Sequence[str],
    spare: Sequence[str],
    width: int,
) -> tuple[list[str], list[list[str | Text]], dict[str, str], list[str]]:
    """Shorten a table to `width` characters, if it can be made to fit.

    First, columns that have one value in all rows go, for it can be told in a line; then those of `spare`, in
    their order; then the middle of long names. Prose in the last column goes on in further lines.

    Args:
        columns: the headings.
        rows: the cells of each row, safe to print.
        right: the headings of numbers: their cells are never shortened.
        spare: the headings of columns that may be left out, the first of them first.
        width: characters of the terminal.

    Returns:
        The headings that stay; their cells, of which prose in the last column may have several lines; the
        value that all rows have in left-out columns, if it says anything; and the other left-out columns.
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
    return stay, kept, same, left_out


def _constant(columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> dict[str, str]:
    if len(rows) < 2:
        return {}
    values = {column: {str(row[place]) for row in rows} for place, column in enumerate(columns)}
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


_COLUMNS: Mapping[str, Callable[[Any], object]] = {
    "rank": attrgetter("rank"),
    "step": lambda row: "run" if row.step is None else row.step,
    "phase": attrgetter("phase"),
    "files": attrgetter("files"),
    "why": attrgetter("reason"),
}
_SOURCE: Mapping[str, Callable[[Any], object]] = {
    "dump files": lambda row: f"{row.source}: {row.source_reason}" if row.source else "-"
}


def _contents(rows: Sequence[StepRow]) -> str:
    if not rows:
        return ""
    ranks = format_ranges({row.rank for row in rows})
    steps = format_ranges({row.step for row in rows if row.step is not None})
    return f", which has ranks {ranks} and steps {steps}"


def explained(
    rows: Sequence[StepRow], ranks: Sequence[int] | None = None, steps: Sequence[int] | None = None
) -> Rows:
    """Return these ranks and steps, or all if none is named, and how many are in each phase.

    Args:
        rows: the steps of a dump.
        ranks: the ranks to show.
        steps: the steps to show.
    """
    chosen = [row for row in rows if (not ranks or row.rank in ranks) and (not steps or row.step in steps)]
    phases = Counter(row.phase for row in chosen)
    return Rows(
        "",
        chosen,
        {**_COLUMNS, **(_SOURCE if any(row.source for row in chosen) else {})},
        right=("files",),
        none=f"no such step in the dump{_contents(rows)}",
        headline=", ".join(f"{count} {phase}" for phase, count in phases.most_common()),
    )
