"""The ring of a black box: elements of the last steps, in host memory or in files that outlive the process.

Memory is taken in chunks that steps hold and give back, so that nothing is allocated, and no page is zeroed,
once the ring has gone round. A ring in a directory maps files into memory: the training writes its tensors
into them as into any memory, and after a kill the kernel still has them (`black_box.adopt`).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.layouts.recorder import RecordedStep
from ingest.recording.writer import Row
from workers.model import MIB

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: Tensors begin at multiples of this, as vector units like them.
_ALIGNMENT = 64
#: What stands before the data of a chunk in a file: the step that holds it, as int64; -1 for none.
_HEADER_NBYTES = mmap.PAGESIZE
_CHUNK_NBYTES = 32 * MIB


class Room(NamedTuple):
    """Memory of the ring for the elements of one tensor."""

    data: Bytes
    chunk: int
    begin: int


class RingChunk(NamedTuple):
    """A piece of memory that one step holds at a time."""

    number: int
    data: Bytes
    holder: npt.NDArray[np.int64]
    """The step that holds it; -1 for none."""


@dataclass(slots=True, eq=False)
class HeldStep:
    """A step whose elements are in the ring."""

    step: int
    rows: list[Row] = field(default_factory=list)
    chunks: list[RingChunk] = field(default_factory=list)
    end: int = 0
    """Of what is used of its last chunk."""
    mark: RecordedStep = field(default_factory=lambda: RecordedStep(tensors=0))
    stacks: bytes = b"{}"

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return sum(row.snapshot.nbytes for row in self.rows)


class Ring:
    """Holds elements of whole steps; the oldest go when room runs out, or when there are too many.

    Used by the training thread, which takes room, and the writing thread, which does everything else.

    Args:
        limit_nbytes: the most memory that it takes.
        steps: how many finished steps it holds.
        directory: of its files; None for memory of the process.
    """

    def __init__(self, limit_nbytes: int, steps: int, directory: Path | None) -> None:
        self.limit_nbytes = limit_nbytes
        self.nbytes = 0
        """Of all chunks."""
        self.directory = directory
        self._steps = steps
        self._chunk_nbytes = max(64 * 1024, min(_CHUNK_NBYTES, limit_nbytes // 64))
        self._number = 0
        self._free: list[RingChunk] = []
        self._running: dict[int, HeldStep] = {}
        self._held: deque[HeldStep] = deque()
        # Reentrant: a signal may interrupt the training thread in here.
        self._lock = threading.RLock()

    @property
    def steps(self) -> list[int]:
        """The finished steps that it holds."""
        with self._lock:
            return [held.step for held in self._held]

    def room(self, step: int, nbytes: int) -> Room | None:
        """Return memory for a tensor of the step that runs; None if all of the ring is in use."""
        with self._lock:
            held = self.running(step)
            if not held.chunks or held.end + nbytes > len(held.chunks[-1].data):
                chunk = self._chunk(nbytes)
                if chunk is None:
                    return None
                chunk.holder[0] = step
                held.chunks.append(chunk)
                held.end = 0
            begin, chunk = held.end, held.chunks[-1]
            held.end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
            return Room(chunk.data[begin : begin + nbytes], chunk.number, begin)

    def running(self, step: int) -> HeldStep:
        """Return a step that is not finished yet."""
        return self._running.setdefault(step, HeldStep(step))

    def unfinished(self, step: int) -> HeldStep | None:
        """Return a step if it is not finished yet; None if it is, or has not begun."""
        return self._running.get(step)

    def finish(self, step: int) -> HeldStep:
        """Return a step that is finished; the caller gives it back with `hold` or `free`."""
        with self._lock:
            return self._running.pop(step, HeldStep(step))

    def hold(self, held: HeldStep) -> None:
        """Keep a finished step, and let go of those before the last `steps`."""
        with self._lock:
            self._held.append(held)
            while len(self._held) > self._steps:
                self.free(self._held.popleft())

    def take(self, step: int) -> HeldStep | None:
        """Return a finished step that the ring holds, and hold it no longer; None if it has gone."""
        with self._lock:
            for held in self._held:
                if held.step == step:
                    self._held.remove(held)
                    return held
        return None

    def free(self, held: HeldStep) -> None:
        """Use the memory of a step for others."""
        with self._lock:
            for chunk in held.chunks:
                chunk.holder[0] = -1
            self._free += held.chunks
            if self.directory is not None:
                (self.directory / f"step_{held.step}.jsonl").unlink(missing_ok=True)
            held.rows, held.chunks = [], []

    def close(self) -> None:
        """Give all memory back; files stay."""
        with self._lock:
            self._free, self._running, self.limit_nbytes = [], {}, 0
            self._held.clear()

    def _chunk(self, nbytes: int) -> RingChunk | None:
        size = max(nbytes, self._chunk_nbytes)
        while True:
            fitting = [chunk for chunk in self._free if nbytes <= len(chunk.data) <= 2 * size]
            if fitting:
                chosen = min(fitting, key=lambda chunk: len(chunk.data))
                self._free = [chunk for chunk in self._free if chunk is not chosen]
                return chosen
            if self.nbytes + size <= self.limit_nbytes:
                try:
                    return self._new_chunk(size)
                except OSError:
                    self.limit_nbytes = self.nbytes  # the file system has no more room
            elif self._free:
                self._drop(self._free.pop())
            elif self._held:
                self.free(self._held.popleft())
            else:
                return None

    def _new_chunk(self, size: int) -> RingChunk:
        number, self._number = self._number, self._number + 1
        if self.directory is None:
            data, holder = np.empty(size, np.uint8), np.full(1, -1)
        else:
            path = self._path(number)
            with path.open("x+b") as file:
                try:
                    # Room that is not there is an error now, and not a signal that ends the training later.
                    os.posix_fallocate(file.fileno(), 0, _HEADER_NBYTES + size)
                except OSError:
                    path.unlink()
                    raise
                mapped = np.frombuffer(mmap.mmap(file.fileno(), _HEADER_NBYTES + size), np.uint8)
            data, holder = mapped[_HEADER_NBYTES:], mapped[:8].view(np.int64)
        self.nbytes += size
        return RingChunk(number, data, holder)

    def _drop(self, chunk: RingChunk) -> None:
        self.nbytes -= len(chunk.data)
        if self.directory is not None:
            self._path(chunk.number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        assert self.directory is not None  # noqa: S101  (for mypy: only rings in files have paths)
        return self.directory / f"chunk_{number:05d}"


def chunk_of(directory: Path, number: int, step: int) -> Bytes | None:
    """Return the data of a chunk in the files of a process that died; None if the step held it no longer."""
    try:
        content = np.memmap(directory / f"chunk_{number:05d}", np.uint8, "r")
    except (OSError, ValueError):
        return None
    is_held = len(content) > _HEADER_NBYTES and int(content[:8].view(np.int64)[0]) == step
    return content[_HEADER_NBYTES:] if is_held else None
