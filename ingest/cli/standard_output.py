"""Standard output as the caller has connected it: to a full disk, a pipe that closes early, or nothing."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import TextIO

from workers.errors import DumpIngestError


class OutputError(OSError):
    """Standard output cannot be written."""

    @property
    def is_broken_pipe(self) -> bool:
        """Whether the reader, such as `head`, has read enough."""
        return self.errno == errno.EPIPE

    def explained(self) -> DumpIngestError:
        """Return the error to report."""
        return DumpIngestError(
            f"the answer cannot be written to standard output: {self.strerror}",
            hint="It is incomplete. Send it to another place, and run the command again.",
        )


class _StandardOutput(io.TextIOWrapper):
    """Standard output, whose errors are told from those of files and stores."""

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
