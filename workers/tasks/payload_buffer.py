"""Reads the payloads of dump files, in parts that stay in the cache while they are processed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from workers.arrays.digest import digest, new_digest
from workers.dump.source import OpenFile
from workers.model import MIB
from workers.tasks.envelopes import Envelope
from workers.tasks.model import Entry

#: Bytes that are read, digested, summarised and encoded while they are in the L2 cache. Most files are a
#: single part of this size. A multiple of the blocks of `workers.arrays.statistics`, so that the bits of sums
#: do not depend on it.
PART_NBYTES: Final = MIB


class PayloadBuffer:
    """Memory that payloads are read into: each in the place of the one before it."""

    def __init__(self, nbytes: int) -> None:
        """Take memory of this size."""
        self._memory = memoryview(bytearray(nbytes))
        self._envelope: bytearray | None = None
        """The envelope of the payload that is held, if it was read with it."""

    def __len__(self) -> int:
        """Return its size in bytes."""
        return len(self._memory)

    def hold(self, entry: Entry, nbytes: int, file: OpenFile) -> tuple[bytes, list[memoryview]]:
        """Read a payload of `nbytes` that fits; return its digest, and its parts, one after the other."""
        header = entry.header
        offset, lead = (header.offset, header.lead) if header else (0, b"")
        if nbytes <= PART_NBYTES and entry.envelope_digest is not None:
            part = self._memory[:nbytes]
            self._envelope = file.envelope(offset, nbytes, entry.envelope_digest, part)
            return digest(part), [part]
        if nbytes <= PART_NBYTES:
            part = file.first_piece(self._memory, offset, nbytes, lead)
            return digest(part), [part]
        running, parts = new_digest(), []
        for at in range(0, nbytes, PART_NBYTES):
            part = self._memory[at : min(at + PART_NBYTES, nbytes)]
            file.first_piece(part, offset + at, len(part), b"" if at else lead)
            running.update(part)
            parts.append(part)
        return running.digest(), parts

    def envelope(self, entry: Entry, file: OpenFile) -> Envelope | None:
        """Return the envelope of the payload that was read last; None if its header has it."""
        if entry.envelope_digest is None:
            return None
        content, self._envelope = self._envelope, None
        if content is None:
            content = file.envelope(entry.offset, entry.nbytes, entry.envelope_digest)
        return Envelope(content, entry.offset)

    def pieces(self, entry: Entry, file: OpenFile) -> Iterator[memoryview]:
        """Yield a payload of any size in parts, each valid until the next."""
        header = entry.header
        lead = header.lead if header and header.view is None else b""
        return file.pieces(self._memory[:PART_NBYTES], entry.offset, entry.nbytes, lead)

    def ranges(self, entry: Entry, file: OpenFile, ranges: Iterable[tuple[int, int]]) -> memoryview:
        """Return ranges of a payload, (offset, nbytes), one after the other."""
        at = 0
        for offset, nbytes in ranges:
            file.first_piece(self._memory[at : at + nbytes], entry.offset + offset, nbytes)
            at += nbytes
        return self._memory[:at]
