"""What stands around payloads, on its way from conversion, which read it, to the index."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

from numcodecs import LZ4

_LZ4 = LZ4()


LeadAndTail: TypeAlias = tuple[str, str]
"""The bytes of a file before and behind the payload of its only tensor, as latin-1 text."""


class AroundPayloads:
    """What stands around payloads, by row of the index.

    That of different files is alike, so it is compressed on its way to another process, and unpacked only
    where it is asked for: not by the process that passes it on.
    """

    __slots__ = ("_packed", "_rows")

    def __init__(self, rows: dict[int, LeadAndTail] | None, packed: bytes = b"") -> None:
        """Hold texts by row, or, without them, what they were packed to."""
        self._rows, self._packed = rows, packed

    @classmethod
    def of(cls, rows: Sequence[int], around: Sequence[LeadAndTail | None]) -> Self | None:
        """Return those rows that have such texts, with them; None if no row has."""
        pairs = zip(rows, around, strict=True)
        by_row = {row: texts for row, texts in pairs if texts is not None}
        return cls(by_row) if by_row else None

    @property
    def by_row(self) -> dict[int, LeadAndTail]:
        """The texts, by row."""
        if self._rows is None:
            # Like all that comes with a task: see `workers.tasks.run`.
            self._rows = pickle.loads(_LZ4.decode(self._packed))  # noqa: S301
        return self._rows

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._packed:
            self._packed = bytes(_LZ4.encode(pickle.dumps(self._rows, protocol=5)))
        return type(self), (None, self._packed)
