"""The `dump-ingest` command: its sub-commands, and how errors become messages and exit codes.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 verification found damage, 4 partly done,
5 differences found, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ingest.cli import (
    anomalies,
    compare,
    config,
    consolidate,
    divergence,
    doctor,
    export,
    find,
    gc,
    heatmap,
    ingest,
    ls,
    origin,
    rules,
    show,
    trend,
    verify,
    watch,
)
from ingest.cli.common import EXIT_DAMAGE, EXIT_FAILED, EXIT_USAGE, say
from workers import __version__
from workers.errors import DamagedStore, DumpIngestError, UsageError

app = typer.Typer(
    name="dump-ingest",
    help="Tensor dumps of training jobs in one Zarr store: which rank, step and operator went wrong first?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 damage found, 4 partly done, 5 differences found, "
    "130 interrupted.",
)
for module in (
    ingest,
    watch,
    ls,
    find,
    anomalies,
    origin,
    divergence,
    compare,
    trend,
    heatmap,
    show,
    export,
    verify,
    consolidate,
    gc,
    doctor,
):
    app.command(module.NAME)(module.command)
app.add_typer(rules.app, name="rules")
app.add_typer(config.app, name="config")


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(f"dump-ingest {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; ends the process with one of the documented exit codes."""
    try:
        app()
    except DumpIngestError as exc:
        report(exc)
        sys.exit(_exit_code(exc))


def report(exc: DumpIngestError) -> None:
    """Print an error as one message and what to do about it."""
    say(exc.message, before="[bold red]error:[/] ")
    if exc.hint:
        say(f"  {exc.hint}")


def _exit_code(exc: DumpIngestError) -> int:
    if isinstance(exc, UsageError):
        return EXIT_USAGE
    return EXIT_DAMAGE if isinstance(exc, DamagedStore) else EXIT_FAILED
