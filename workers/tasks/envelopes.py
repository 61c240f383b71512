"""The envelopes of payloads, on their way from conversion, which reads them, to the index.

The envelope of a payload is all that its file holds besides it: the bytes before and the bytes behind the
payload of a file with a single tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from numcodecs import LZ4

_LZ4 = LZ4()

LeadAndTail: TypeAlias = tuple[str, str]
"""The bytes of a file before and behind the payload of its only tensor, as latin-1 text."""


class Envelope(NamedTuple):
    """All bytes of a file but the payload of its only tensor."""

    content: bytearray
    """The bytes before the payload, and those behind it."""
    lead_nbytes: int
    """How many stand before it."""


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Envelopes by row of the index.

    Those of different files are alike, so they are compressed on their way to another process, all at once,
    and unpacked only where they are asked for: not by the process that passes them on.
    """

    rows: tuple[int, ...]
    lead_nbytes: tuple[int, ...]
    """Of each row."""
    tail_nbytes: tuple[int, ...]
    packed: bytes
    """The envelopes, one after the other, compressed by LZ4; empty if all of them are."""

    @classmethod
    def of(cls, rows: Sequence[int], envelopes: Sequence[Envelope | None]) -> Self | None:
        """Return those rows that have an envelope, with it; None if no row has."""
        pairs = zip(rows, envelopes, strict=True)
        by_row = {row: envelope for row, envelope in pairs if envelope is not None}
        if not by_row:
            return None
        contents, leads = zip(*by_row.values(), strict=True)
        tails = tuple(len(content) - lead for content, lead in zip(contents, leads, strict=True))
        joined = b"".join(contents)
        return cls(tuple(by_row), leads, tails, bytes(_LZ4.encode(joined)) if joined else b"")

    def texts(self) -> Iterator[tuple[int, LeadAndTail]]:
        """Yield each row, with what stands before and behind its payload."""
        joined = memoryview(_LZ4.decode(self.packed) if self.packed else b"")
        end = 0
        for row, lead_n, tail_n in zip(self.rows, self.lead_nbytes, self.tail_nbytes, strict=True):
            begin, middle = end, end + lead_n
            end = middle + tail_n
            yield row, (str(joined[begin:middle], "latin-1"), str(joined[middle:end], "latin-1"))
