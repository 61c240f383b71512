"""How a command ends: exit codes, error messages, and signals."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Collection, Iterable

import typer

from ingest.cli.printing import say
from workers.errors import DamagedStore, DumpIngestError, UsageError

EXIT_FAILED, EXIT_USAGE, EXIT_DAMAGE, EXIT_PARTLY, EXIT_DIFFERENT, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130


def report_error(error: DumpIngestError) -> None:
    """Print an error to stderr: one message, and what to do about it."""
    say(error.message, label="error", style="bold red")
    if error.hint:
        say(f"  {error.hint}")


def exit_code_of(error: DumpIngestError) -> int:
    """Return the exit code of a command that an error ended."""
    if isinstance(error, UsageError):
        return EXIT_USAGE
    return EXIT_DAMAGE if isinstance(error, DamagedStore) else EXIT_FAILED


def exit_if_damaged(damaged: Collection[object]) -> None:
    """End a command that has answered about the rest, if any step was damaged.

    Raises:
        Exit: with `EXIT_DAMAGE`.
    """
    if damaged:
        raise typer.Exit(EXIT_DAMAGE)


def say_damaged(damages: Iterable[object]) -> None:
    """Print to stderr which steps an answer does not cover because they are damaged."""
    for damage in damages:
        say(str(damage), label="damaged", style="red")


def stop_on_signals() -> threading.Event:
    """Return an event that the first SIGINT or SIGTERM sets; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        if stop.is_set():
            sys.exit(EXIT_INTERRUPTED)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop
