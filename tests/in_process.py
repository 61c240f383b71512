"""Run the `dump-ingest` command within this process: for tests to which the process does not matter.

It saves the second that a process takes to import everything. What a test checks of signals, of other users,
of processes and their memory, or of a scheduler needs `tests.cli.run`.
"""

import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import structlog

from ingest.cli import main
from tests.cli import Finished, environment


def run_here(
    *args: object, code: int = 0, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Finished:
    """Run the command to its end, as `tests.cli.run` does. Fail unless it exits with `code`."""
    done = end_here(*args, env=env, cwd=cwd)
    transcript = f"{' '.join(map(str, args))}\nexit code {done.code}\n{done.stdout}\n{done.stderr}"
    assert done.code == code, transcript
    assert "Traceback" not in done.stdout + done.stderr, transcript
    return done


def end_here(*args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Finished:
    """Run the command to its end, whatever that is."""
    out, err = _text_file(), _text_file()
    with (
        patch.dict(os.environ, environment(env), clear=True),
        patch.object(sys, "argv", ["dump-ingest", *map(str, args)]),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _as_it_was(),
    ):
        try:
            main()
            ended = 0
        except SystemExit as end:
            ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Finished(ended, _content(out), _content(err))


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Leave signal handlers and logs of this process as they were: a command that writes configures them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    root_handlers = list(root.handlers)
    loggers = [root, *(item for item in root.manager.loggerDict.values() if isinstance(item, logging.Logger))]
    levels = [logger.level for logger in loggers]
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        root.handlers[:] = root_handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        structlog.reset_defaults()


def _text_file() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)


def _content(file: io.TextIOWrapper) -> str:
    file.seek(0)
    return file.read()
