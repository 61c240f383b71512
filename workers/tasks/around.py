"""The bytes around payloads that conversion read, on their way to the index."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Self

from numcodecs import LZ4

_LZ4 = LZ4()


class AroundPayloads:
    """By row of the index, all bytes of a file but the payload of its only tensor.

    Those of different files resemble one another, so they are compressed on their way to another process.
    They are unpacked only where they are asked for: not by the process that passes them on.
    """

    __slots__ = ("_packed", "_rows")

    def __init__(self, rows: dict[int, bytes] | None = None, packed: bytes = b"") -> None:
        """Hold bytes by row, or what they were packed to."""
        self._rows, self._packed = rows, packed

    @classmethod
    def of(cls, rows: Sequence[int], around: Sequence[bytes | None]) -> Self:
        """Return those rows that have such bytes, with them."""
        pairs = zip(rows, around, strict=True)
        return cls({row: content for row, content in pairs if content is not None})

    @property
    def by_row(self) -> dict[int, bytes]:
        """The bytes, by row."""
        if self._rows is None:
            # Like all that comes with a task: see `workers.tasks.run`.
            self._rows = pickle.loads(_LZ4.decode(self._packed)) if self._packed else {}  # noqa: S301
        return self._rows

    def __reduce__(self) -> tuple[Any, ...]:
        if self._rows and not self._packed:
            self._packed = bytes(_LZ4.encode(pickle.dumps(self._rows, protocol=5)))
        return type(self), (None, self._packed)
