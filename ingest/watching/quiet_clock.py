"""The clocks by which a step has been quiet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: By how much the clock of a host may be ahead of a file server's, in seconds: older files are surely old.
MOST_AHEAD_S = 86_400.0


def file_system_time(directory: Path) -> float | None:
    """Return the time by the clock of a file system, in seconds since the epoch; None if it does not tell.

    An unnamed file is made for it: it changes no directory, and is gone when this returns. NFS has none, and
    a directory that this process may not write to tells nothing either.
    """
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class QuietClock:
    """The clocks of this process, of its host, and of the file system.

    Times of files are compared only where nothing else is known: a step that is seen for the first time has
    been quiet since its newest change, by the clock of its file system, but at most since the scan at which
    it was not there. From then on only what is observed counts.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    files: Callable[[Path], float | None] = file_system_time

    def reached(self, directory: Path, newest_change: float) -> float:
        """Return a Unix time that the clock of a file system has certainly reached.

        If it does not tell, that is the newest time that it was seen to give a file: what the clock of this
        host says counts only if it is further ahead than it can be wrong. So the last steps of such a dump
        have to be seen to be quiet.

        Args:
            directory: in the file system.
            newest_change: the newest time of all files there that were listed.
        """
        now = self.files(directory)
        if now is not None:
            return now
        wall = self.wall()
        return max(min(newest_change, wall), wall - MOST_AHEAD_S)
