"""How a command ends: exit codes, error messages, signals, and a standard output that does not take more."""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import NoReturn, TextIO, TypeVar

import typer

from ingest.cli.printing import say
from ingest.service.stopping import StopRequest
from workers.errors import OWNER_HINT, DamagedStore, DumpIngestError, UsageError


class OutputError(OSError):
    """Standard output cannot be written."""

    def explained(self) -> DumpIngestError:
        """Return the error to report."""
        return DumpIngestError(
            f"the answer cannot be written to standard output: {self.strerror}",
            hint="It is incomplete. Send it to another place, and run the command again.",
        )


class _StandardOutput(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as exc:
            raise OutputError(exc.errno, exc.strerror) from exc

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as exc:
            raise OutputError(exc.errno, exc.strerror) from exc


def prepare_output() -> None:
    r"""Let commands print any text: in every locale, and also if the caller has closed a stream.

    A character that the encoding of standard output lacks is printed as an escape, such as `\u2581`. What is
    written to a closed stream is lost, as with any program. Writing raises `OutputError` from now on.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    given = sys.stdout
    if isinstance(given, io.TextIOWrapper) and given is sys.__stdout__:
        encoding, by_line = given.encoding, given.line_buffering or given.write_through
        binary = given.detach()
        if isinstance(binary, io.RawIOBase):
            # With PYTHONUNBUFFERED: a write of which a full disk takes only a part would raise no error.
            binary = io.BufferedWriter(binary)
        sys.stdout = _StandardOutput(binary, encoding, "backslashreplace", line_buffering=by_line)


def _nowhere() -> TextIO:
    """Return a stream in place of a closed one, whose descriptor a file of a store would take otherwise."""
    return Path(os.devnull).open("w", encoding="utf-8")


def discard_output() -> None:
    """Forget what standard output did not take: the interpreter would try once more, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


_Result = TypeVar("_Result")

EXIT_FAILED, EXIT_USAGE, EXIT_DAMAGE, EXIT_PARTLY, EXIT_DIFFERENT, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130
#: How long a command may take to stop after Ctrl-C, in seconds.
INTERRUPTED_S = 4.5
#: How long a signal may go unheard, in seconds.
_HEARD_S = 0.2
_CLEAR_LINE, _SHOW_CURSOR = "\x1b[K", "\x1b[?25h"


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


def say_damaged(damages: Iterable[object]) -> None:
    """Print to stderr which steps an answer does not cover because they are damaged."""
    for damage in damages:
        say(str(damage), label="damaged", style="red")


def end_if_damaged(damages: Collection[object], left_out: Collection[object] = ()) -> None:
    """Print to stderr which steps an answer does not cover; end the command if any is damaged.

    Raises:
        Exit: with `EXIT_DAMAGE`.
    """
    for left in left_out:
        say(str(left), label="left out")
    say_damaged(damage for damage in damages if damage not in left_out)
    damaged = [*damages, *(left for left in left_out if getattr(left, "is_damaged", False))]
    if damaged:
        # Files that may not be read are not mended by `repair`.
        if not all(OWNER_HINT in str(damage) for damage in damaged):
            say(DamagedStore.hint, label="hint")
        raise typer.Exit(EXIT_DAMAGE)


class Interrupted(BaseException):
    """Ctrl-C: ends a command that does not finish its work first."""


def raise_on_interrupt() -> threading.Event:
    """Have Ctrl-C raise `Interrupted`; if the command has not ended some seconds later, end the process.

    Returns:
        An event that Ctrl-C sets.
    """
    interrupted = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, lambda *_: end_now(EXIT_INTERRUPTED))
        _print_now("stopping; Ctrl-C again to give up")
        _end_after(INTERRUPTED_S, EXIT_INTERRUPTED)
        raise Interrupted

    # In the background, a shell has its commands ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handle)
    return interrupted


def stop_on_signals(terminated_s: float = math.inf) -> StopRequest:
    """Return an event that the first SIGINT or SIGTERM sets; a second signal ends the process at once.

    So does the time: `INTERRUPTED_S` after Ctrl-C, and `terminated_s` after SIGTERM.
    """
    stop = StopRequest()

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            end_now(EXIT_INTERRUPTED)
        stop.is_interrupt = number == signal.SIGINT
        if stop.is_interrupt:
            tasks = stop.under_way()
            finishing = f": finishing {tasks} task{'' if tasks == 1 else 's'}" if tasks else ""
            _print_now(f"stopping{finishing}; Ctrl-C again to give up")
            _end_after(INTERRUPTED_S, EXIT_INTERRUPTED)
        else:
            _end_after(terminated_s, EXIT_FAILED)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


def run_beside(work: Callable[[], _Result]) -> _Result:
    """Run what waits in the kernel in a thread of its own; wait for it where signals are heard.

    Python runs the handlers of signals in the main thread, between two of its instructions. A read in a file
    system that hangs would keep that thread from them, and the process from ending.
    """
    future: Future[_Result] = Future()
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as exc:  # noqa: BLE001  (`result` raises it again)
            future.set_exception(exc)

    threading.Thread(target=run, name="work", daemon=True).start()
    # The kernel may give a signal to any thread, and interrupts a wait without an end only in that one.
    while not future.done():
        wait([future], timeout=_HEARD_S)
    return future.result()


def end_now(code: int) -> NoReturn:
    """End the process without waiting for its threads, of which one may hang. Its workers end with it."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    if sys.stderr.isatty():
        _write_error(_SHOW_CURSOR)
    os._exit(code)


def _end_after(seconds: float, code: int) -> None:
    if math.isinf(seconds):
        return
    timer = threading.Timer(seconds, end_now, [code])
    timer.daemon = True
    timer.start()


def _print_now(text: str) -> None:
    """Print a line from a handler of a signal, which may have interrupted somebody who was printing."""
    _write_error(f"\r{_CLEAR_LINE}{text}\n" if sys.stderr.isatty() else f"{text}\n")


def _write_error(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode())
