"""Objects that are written piece by piece, all or nothing: nothing has their name before they are closed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

#: Attempts to make the directory of a new file: somebody may remove it as empty in between.
_ATTEMPTS = 3
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class NewObject(Protocol):
    """An object that is being written."""

    def write(self, piece: bytes | bytearray) -> None:
        """Add a piece; it may be changed when this has returned."""

    def close(self) -> None:
        """Give it its name, in place of any other object of that name."""

    def drop(self) -> None:
        """Leave nothing of it behind; nothing happens when it is closed."""


class Gathered:
    """A new object that is held in memory, and put as a whole."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """Call `put` when it is closed."""
        self._put = put
        self._pieces: list[bytes] = []

    def write(self, piece: bytes | bytearray) -> None:
        """Add a piece."""
        self._pieces.append(bytes(piece))

    def close(self) -> None:
        """Put the whole."""
        whole = b"".join(self._pieces)
        self._pieces = []
        self._put(whole)

    def drop(self) -> None:
        """Forget the pieces."""
        self._pieces = []


class NewFile:
    """A new object that is a file, and nothing of it in memory."""

    def __init__(self, path: str) -> None:
        """Begin a file; its directory is made if it is missing.

        Raises:
            OSError: it cannot be written.
        """
        # Text, for a step has a dozen small objects, and a `Path` for each takes longer than to write them.
        self._path = path
        directory, _, name = path.rpartition("/")
        # Beside its target, for a rename is atomic only within one file system.
        self._temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp"
        try:
            self._fd = os.open(self._temporary, _FLAGS, 0o666)
        except FileNotFoundError:
            self._fd = _open_in_new(directory, self._temporary)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Add a piece."""
        left = memoryview(piece)
        while left:  # 2 GiB at most go at once
            left = left[os.write(self._fd, left) :]

    def close(self) -> None:
        """Give the file its name."""
        self._end()
        os.replace(self._temporary, self._path)  # noqa: PTH105

    def drop(self) -> None:
        """Remove the file. What keeps that from being done is not told: what went wrong before is."""
        with suppress(OSError):  # network file systems say again what they said of a write
            self._end()
        with suppress(OSError):
            os.unlink(self._temporary)  # noqa: PTH108

    def _end(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open_in_new(directory: str, path: str) -> int:
    """Make a directory and open a file in it; again where somebody removes it as empty in between."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103
            return os.open(path, _FLAGS, 0o666)
    os.makedirs(directory, exist_ok=True)  # noqa: PTH103
    return os.open(path, _FLAGS, 0o666)
