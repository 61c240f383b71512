"""A file that is written piece by piece under a temporary name."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

#: Attempts to make the directory of a new file: another process may remove it as empty in between.
_ATTEMPTS = 3
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class NewFile:
    """A new object that is a file, with nothing of it in memory. Raises `OSError`."""

    def __init__(self, path: str) -> None:
        """Begin a file; its directory is made if it is missing."""
        # Text, because a step has a dozen small objects, and making a `Path` for each takes longer than
        # writing them.
        self._path = path
        directory, _, name = path.rpartition("/")
        # Next to its target, because a rename is atomic only within one file system.
        self._temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp"
        try:
            self._fd = os.open(self._temporary, _FLAGS, 0o666)
        except FileNotFoundError:
            self._fd = _open_in_new(directory, self._temporary)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Add a piece."""
        left = memoryview(piece)
        while left:  # 2 GiB at most are written at once
            left = left[os.write(self._fd, left) :]

    def set_mode(self, mode: int) -> None:
        """Set who may read and write the file, whatever the umask of this process says."""
        os.fchmod(self._fd, mode)

    def close(self) -> None:
        """Give the file its name."""
        self._close()
        os.replace(self._temporary, self._path)  # noqa: PTH105  (see `__init__`)

    def drop(self) -> None:
        """Remove the file, if it is not closed. Failures to do so are not raised: an earlier one is."""
        with suppress(OSError):  # network file systems report an error of a write again
            self._close()
        with suppress(OSError):
            os.unlink(self._temporary)  # noqa: PTH108  (see `__init__`)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open_in_new(directory: str, path: str) -> int:
    """Make a directory and open a file in it; try again if another process removes it as empty in between."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103  (see `NewFile`)
            return os.open(path, _FLAGS, 0o666)
    os.makedirs(directory, exist_ok=True)  # noqa: PTH103  (see `NewFile`)
    return os.open(path, _FLAGS, 0o666)
