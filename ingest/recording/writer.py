"""The thread that writes what was recorded, step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingest.layouts.recorder import RecordedPlacement, RecordedStep
from ingest.recording.queue import ByteQueue
from ingest.recording.snapshots import TensorSnapshot
from ingest.recording.step_files import MAX_FILE_NBYTES, StepFiles
from workers.dump.model import TensorName


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A tensor to write."""

    step: int
    name: TensorName
    snapshot: TensorSnapshot
    nbytes: int
    """What is reserved for it in the queue."""
    dtensor: RecordedPlacement | None = None
    """How the DTensor of which it is the local part lies on its mesh."""


@dataclass(frozen=True, slots=True, eq=False)
class StepEnd:
    """The last of a step."""

    step: int
    mark: RecordedStep
    """Without the number of tensors, which the writer knows."""
    stacks: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class _Stop:
    """The last of all."""


class Writer:
    """Writes steps to a directory, one after the other, in a thread of its own.

    Nothing that goes wrong is raised: `failure` says it, and what comes later is dropped.

    Args:
        directory: of the rank.
        limit_nbytes: the most that waits to be written.
    """

    def __init__(self, directory: Path, limit_nbytes: int) -> None:
        self.queue: ByteQueue[Row | StepEnd | _Stop] = ByteQueue(limit_nbytes)
        self.failure: Exception | None = None
        self._directory = directory
        self._max_file_nbytes = max(1, min(MAX_FILE_NBYTES, limit_nbytes // 4))
        self._files: StepFiles | None = None
        self._unwritten = 0
        """Bytes reserved for what `_files` holds back."""
        # A daemon: a program that leaves without ending the recording must not hang.
        self._thread = threading.Thread(target=self._run, name="dump-ingest-recorder", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write everything that is queued, and end."""
        self.queue.put(_Stop())
        self._thread.join()

    def _run(self) -> None:
        while True:
            item = self.queue.take()
            if isinstance(item, _Stop):
                return
            try:
                self._handle(item)
            except Exception as exc:  # noqa: BLE001  (whatever it is: the training goes on without a recorder)
                self.failure = self.failure or exc
                self._files = None
                self._release()

    def _handle(self, item: Row | StepEnd | None) -> None:
        if isinstance(item, Row):
            self._unwritten += item.nbytes
            if self.failure is not None:
                self._release()
                return
            if self._files is None:
                directory = self._directory / f"step_{item.step}"
                self._files = StepFiles(directory, self._max_file_nbytes)
            if self._files.add(item.name, item.snapshot, item.dtensor):
                self._release()
            return
        if self._files is not None and self.failure is None:
            if isinstance(item, StepEnd):
                mark = item.mark
                self._files.finish(item.stacks(), _with_tensors(mark, self._files.tensors))
                self._files = None
            else:
                self._files.flush()
        self._release()

    def _release(self) -> None:
        nbytes, self._unwritten = self._unwritten, 0
        self.queue.release(nbytes)


def _with_tensors(mark: RecordedStep, tensors: int) -> RecordedStep:
    return RecordedStep(tensors=tensors, ended=mark.ended, left_out=mark.left_out, problems=mark.problems)
