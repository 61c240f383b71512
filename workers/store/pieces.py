"""Objects that are written piece by piece, all or nothing: none has its name before it is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class NewObject(Protocol):
    """An object that is being written."""

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Add a piece; the caller may change it when this has returned."""

    def close(self) -> None:
        """Give it its name, in place of any other object of that name."""

    def drop(self) -> None:
        """Leave nothing of it behind; nothing happens if it is closed."""


class Gathered:
    """A new object that is held in memory, and put as a whole."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """Call `put` when it is closed."""
        self._put = put
        self._pieces: list[bytes] = []

    def write(self, piece: bytes | bytearray | memoryview) -> None:
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
