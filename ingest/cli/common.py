"""What the commands share: options, exit codes, tables and JSON. stdout is data, stderr is talk."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ingest.settings import LoadedSettings

EXIT_FAILED, EXIT_USAGE, EXIT_DAMAGE, EXIT_PARTLY, EXIT_DIFFERENT, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130

err = Console(stderr=True, highlight=False)
out = Console(highlight=False)

ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML file of settings (see `config schema`).",
        readable=False,  # `settings.load` has the better message
    ),
]
StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URL", help="The store: a directory, or a URL such as s3://bucket/run.zarr."
    ),
]
StoreArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="STORE",
        help="The store: a directory or URL. Default: the `store` setting.",
        show_default=False,
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RankOption: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--rank", "-r", min=0, help="Only this rank; may be repeated.", show_default=False),
]
StepOption: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--step", "-n", min=0, help="Only this step; may be repeated.", show_default=False),
]

PartialOption: TypeAlias = Annotated[
    bool, typer.Option("--include-partial", help="Take partial steps, too.", show_default=False)
]


def print_json(answer: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object, or an array of flat objects, one a line. NaN and infinities become null."""
    if isinstance(answer, Mapping):
        sys.stdout.write(_dumps(answer) + "\n")
        return
    rows = ",\n ".join(_dumps(row) for row in answer)
    sys.stdout.write(f"[{rows}]\n")


def _dumps(row: Mapping[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in row.items()}, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Sequence[str] = (),
    title: str = "",
) -> None:
    """Print a table to stdout, as wide as its content: a cell cut short would say something else.

    A cell may be a `Text` that has colours and is safe to print.
    """
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="fold"
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else escape(printable(cell)) for cell in row))
    console = Console(highlight=False, width=10_000)
    with console.capture() as capture:
        console.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def printable(text: str) -> str:
    """Return names out of a dump without what a terminal would obey, or cannot show."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def say(message: str, *, before: str = "") -> None:
    """Print talk to stderr: `before` may hold rich markup, `message` is taken as it is."""
    text = "\n".join(map(printable, message.split("\n")))
    err.print(f"{before}{escape(text)}", soft_wrap=True)


def number(value: float | None) -> str:
    """Write a statistic in few characters."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.6g}"


def step_name(step: int | None) -> str:
    """Write a step; what belongs to none is `run`."""
    return "run" if step is None else str(step)


def stop_on_signals() -> threading.Event:
    """Return an event that the first SIGINT or SIGTERM sets; the second ends the process at once."""
    stop = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        if stop.is_set():
            sys.exit(EXIT_INTERRUPTED)
        stop.set()

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, handle)
    return stop


def load_settings(config: Path | None, **flags: Any) -> LoadedSettings:
    """Load settings for a command that writes, and warn of variables that set nothing.

    Raises:
        UsageError: they are wrong, or name no store.
    """
    from ingest.settings import load
    from workers.errors import UsageError

    loaded = load(config, **flags)
    for name in loaded.unknown_variables:
        say(f"{name} is no setting; see `dump-ingest config schema`", before="[yellow]warning:[/] ")
    if loaded.settings.store is None:
        raise UsageError(
            "no store", hint="Name it with --store, DUMP_INGEST_STORE, or `store` in the settings file."
        )
    return loaded


def the_store(store: str | None, config: Path | None) -> Any:
    """Open the store that was named, or else the one of the settings.

    Raises:
        UsageError: there is no name in either.
    """
    from ingest import open_store
    from ingest.settings import load
    from workers.errors import UsageError

    settings = load(config, store=store).settings
    if settings.store is None:
        raise UsageError(
            "no store", hint="Name it, or set DUMP_INGEST_STORE or `store` in the settings file."
        )
    return open_store(settings.store, **settings.store_options)
