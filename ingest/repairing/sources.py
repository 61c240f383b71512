"""Where the bytes of a payload can be found again: in dump files, and in other rows of the store.

Payloads are named by their digest, XXH3-128. Whatever has the same digest and the same length is the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from ingest.reader.catalog import Catalog
from workers.arrays import device_format
from workers.arrays.digest import new_digest
from workers.arrays.strided import elements_of
from workers.dump import paths
from workers.dump.source import OpenFile
from workers.errors import DumpIngestError
from workers.model import MIB, SourceFile, StepKey, bounded_ns
from workers.store.restore import is_view, view_of
from workers.store.step import StoredStep

_PIECE_NBYTES = 16 * MIB


class Payload(Protocol):
    """The payload of a row as it is to be stored."""

    @property
    def origin(self) -> str:
        """Where it is, for people."""

    def read(self, start: int, stop: int) -> bytes | bytearray:
        """Return bytes `start` to `stop`, both multiples of the size of a stored element.

        Raises:
            DumpIngestError, OSError: they cannot be read.
        """


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """The payload of a row of a stored step."""

    step: StoredStep
    row: int
    origin: str

    def read(self, start: int, stop: int) -> bytearray:
        """Return bytes `start` to `stop`."""
        return self.step.read(self.row, start, stop)


@dataclass(eq=False)
class DumpedPayload:
    """The payload of a row in the dump file that the row was made from.

    Memory: a tensor that was stored in the order of its axes and dumped in device layout is read as a whole,
    which is at most 256 MiB; of other payloads, what is asked for.
    """

    step: StoredStep
    """The step whose index says where the payload is in the file."""
    row: int
    root: Path
    origin: str = field(init=False)

    def __post_init__(self) -> None:
        """Name the dump."""
        self.origin = f"the dump {self.root}"

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop`."""
        if is_view(self.step, self.row):
            return self._viewed[start:stop]
        device = self.step.device(self.row)
        if device is not None and not self.step.is_in_device_layout(self.row):
            return self._host[start:stop]
        return self._in_file(start, stop)

    @cached_property
    def _host(self) -> bytes:
        """The whole tensor in the order of its axes."""
        device = self.step.device(self.row)
        assert device is not None  # noqa: S101 (for mypy)
        nbytes = int(self.step.tables.number("source_nbytes")[self.row])
        payload = np.frombuffer(self._in_file(0, nbytes), np.uint8)
        host = device_format.to_host(payload, device, self.step.shape(self.row), self.step.element(self.row))
        return host.tobytes()

    @cached_property
    def _viewed(self) -> bytes:
        """All elements of a view."""
        view = view_of(self.step, self.row)
        if view is None:
            return b""
        shape, element = self.step.shape(self.row), self.step.element(self.row)
        return bytes(elements_of(self._bytes_from, view, shape, element))

    def _bytes_from(self, start: int, nbytes: int) -> bytes:
        return self._in_file(start, start + nbytes)

    def _in_file(self, start: int, stop: int) -> bytes:
        table = self.step.tables
        path = paths.from_text(str(table.label("source")[self.row]))
        begin = int(table.number("source_offset")[self.row])
        status = os.lstat(self.root / paths.relative(path))
        source = SourceFile(path, status.st_size, bounded_ns(status.st_mtime_ns))
        with OpenFile(self.root, source, str(self.step.key)) as file:
            return file.read_at(begin + start, stop - start)


def is_same(payload: Payload, nbytes: int, digest: bytes) -> bool:
    """Read a payload, and return whether it has this digest."""
    running = new_digest()
    try:
        for start in range(0, nbytes, _PIECE_NBYTES):
            stop = min(start + _PIECE_NBYTES, nbytes)
            piece = payload.read(start, stop)
            if len(piece) != stop - start:
                return False
            running.update(piece)
    except (DumpIngestError, OSError, ValueError):  # it is gone, or another file by now: not a source
        return False
    return running.digest() == digest


def first_same(candidates: Iterable[Payload], nbytes: int, digest: bytes) -> Payload | None:
    """Return the first payload that has this digest; None if there is none."""
    return next((payload for payload in candidates if is_same(payload, nbytes, digest)), None)


@dataclass(frozen=True, slots=True)
class Copies:
    """Finds rows with the same digest in other steps. Reads their indexes, one at a time."""

    catalog: Catalog

    def find(self, key: StepKey, earlier: Sequence[StoredStep], digests: Sequence[bytes]) -> _Found:
        """Return rows that have these digests, by digest; at most a few of each.

        Args:
            key: the step that needs them, which is not searched.
            earlier: earlier generations of it, which are searched first.
            digests: what to look for.
        """
        wanted = set(digests)
        found: _Found = {digest: [] for digest in wanted}
        for step, origin in self._places(key, earlier):
            if all(len(rows) >= _ENOUGH for rows in found.values()):
                break
            for digest, row in _rows_with(step, wanted):
                if len(found[digest]) < _ENOUGH:
                    found[digest].append(StoredPayload(step, row, origin))
        return found

    def _places(self, key: StepKey, earlier: Sequence[StoredStep]) -> Iterator[tuple[StoredStep, str]]:
        yield from ((step, f"an earlier generation, {step.commit.fingerprint}") for step in earlier)
        opened = self.catalog.select(damages=[])
        # Nearest first: replicas of the same step, then neighbouring steps.
        number = key.order[0]
        for step in sorted(opened, key=lambda step: (abs(step.key.order[0] - number), step.key.rank)):
            if step.key != key:
                yield step, str(step.key)


_Found = dict[bytes, list[StoredPayload]]
#: Rows with the same digest that are kept: the first may turn out to be damaged, too.
_ENOUGH = 3


def _rows_with(step: StoredStep, wanted: set[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the rows of a step that have one of these digests and a payload; none if its index is damaged."""
    try:
        table = step.tables
    except DumpIngestError:
        return
    offsets = table.number("offset")
    for row, digest in enumerate(table.digest):
        name = digest.tobytes()
        if name in wanted and offsets[row] >= 0 and step.has_payload(row):
            yield name, row
    # The rows that were found keep their own reference; of other steps nothing stays in memory.
