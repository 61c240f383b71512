"""The thread that writes what was recorded, step by step."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from ingest.layouts.black_box import write_whole
from ingest.layouts.recorder import (
    STACK_FILE,
    STATISTICS_FILE,
    STEP_FILE,
    RecordedPlacement,
    RecordedStep,
    RecordedTensor,
)
from ingest.recording.snapshots import TensorSnapshot
from workers.arrays.statistics import FIELDS
from workers.dump.formats.safetensors import CODES, TensorInFile, encode_header
from workers.dump.model import TensorName
from workers.model import MIB

Item = TypeVar("Item")
#: Beyond the limit, so that statistics are recorded where elements do not find room.
MARGIN_NBYTES = 64 * MIB


class ByteQueue(Generic[Item]):
    """A queue that holds at most `limit_nbytes`, or a single larger item.

    Whoever takes an item gives its bytes back when it has written them, with `release`: what waits to be
    written counts, too.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self._items: deque[Item] = deque()
        self.held_nbytes = 0
        """The bytes that were reserved and not given back."""
        self._waiting = 0
        self._changed = threading.Condition()

    def reserve(self, nbytes: int, *, wait: bool = False, margin_nbytes: int = 0) -> bool:
        """Reserve room, and return whether there is.

        Args:
            nbytes: how much.
            wait: whether to wait for it.
            margin_nbytes: how far beyond the limit, for something small.
        """
        limit_nbytes = self.limit_nbytes + margin_nbytes
        with self._changed:
            while self.held_nbytes and self.held_nbytes + nbytes > limit_nbytes:
                if not wait:
                    return False
                self._waiting += 1
                self._changed.notify_all()
                self._changed.wait()
                self._waiting -= 1
            self.held_nbytes += nbytes
            return True

    def put(self, item: Item) -> None:
        """Add an item, for which room is reserved."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def take(self, timeout_s: float | None = None) -> Item | None:
        """Wait for an item; return None at once if somebody waits for room and the queue is empty.

        Args:
            timeout_s: how long to wait, in seconds, before None is returned anyway; None for ever.
        """
        with self._changed:
            while not self._items:
                if (self._waiting and self.held_nbytes) or not self._changed.wait(timeout_s):
                    return None
            return self._items.popleft()

    def release(self, nbytes: int) -> None:
        """Give room back."""
        with self._changed:
            self.held_nbytes -= nbytes
            self._changed.notify_all()


#: Elements that become one file, unless the queue is smaller.
MAX_FILE_NBYTES = 64 * MIB
#: Lines that are written together.
_MAX_LINES = 512


class StepFiles:
    """Writes one step. Holds lines and elements back until a file of them is worth it.

    Args:
        directory: of the step; it must not exist.
        max_file_nbytes: the bytes of elements at which a file is full.
        again: whether the directory may exist: its lines stay until they are replaced at the end.

    Raises:
        OSError: the directory exists, or cannot be made.
    """

    def __init__(self, directory: Path, max_file_nbytes: int, *, again: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=again)
        self._lines_path = directory / (f".{STATISTICS_FILE}" if again else STATISTICS_FILE)
        if again:
            # The mark first: from now on, whoever looks sees a step that is not finished.
            for path in (directory / STEP_FILE, self._lines_path, *directory.glob("recorded-tensor*")):
                path.unlink(missing_ok=True)
        self._directory = directory
        self._max_file_nbytes = max_file_nbytes
        self._lines: list[RecordedTensor] = []
        self._elements: list[tuple[str, TensorSnapshot]] = []
        self._nbytes = 0
        self._files = 0
        self.tensors = 0

    def add(
        self, name: TensorName, snapshot: TensorSnapshot, dtensor: RecordedPlacement | None = None
    ) -> bool:
        """Add a tensor; return whether everything that was added so far is on disk now."""
        file = key = ""
        if snapshot.has_elements and snapshot.dtype in CODES:
            # The file of safetensors that `flush` writes next.
            file = f"recorded-tensors-{self._files:05d}.safetensors"
            key = f"{name.sequence}.{name.op_type}.{name.op_name}.{name.io}.{name.slot}"
            self._elements.append((key, snapshot))
            self._nbytes += snapshot.nbytes
        elif snapshot.has_elements:
            file = f"recorded-tensor-{name.sequence}.raw"
        self._lines.append(line_of(name, snapshot, dtensor, file, key))
        self.tensors += 1
        if file and not key:
            self._write_lines()
            (self._directory / file).write_bytes(snapshot.elements().view(np.uint8).data)
        if self._nbytes >= self._max_file_nbytes or len(self._lines) >= _MAX_LINES:
            self.flush()
        return not self._elements and not self._lines

    def flush(self) -> None:
        """Write everything that was added: lines first."""
        self._write_lines()
        if self._elements:
            path = self._directory / f"recorded-tensors-{self._files:05d}.safetensors"
            _write_safetensors(path, self._elements)
            self._files += 1
            self._elements, self._nbytes = [], 0

    def _write_lines(self) -> None:
        if self._lines:
            with self._lines_path.open("ab") as file:
                file.write(msgspec.json.Encoder().encode_lines(self._lines))
            self._lines = []

    def finish(self, stacks: bytes, mark: RecordedStep) -> None:
        """Write what is left, and at last the file that says that the step is finished."""
        self.flush()
        (self._directory / STACK_FILE).write_bytes(stacks)
        if self.tensors:
            self._lines_path.replace(self._directory / STATISTICS_FILE)
        write_mark(self._directory, structs.replace(mark, tensors=self.tensors))


def line_of(
    name: TensorName,
    snapshot: TensorSnapshot,
    dtensor: RecordedPlacement | None,
    file: str = "",
    key: str = "",
) -> RecordedTensor:
    """Return the line of a tensor, whose elements are in a file if it has a name."""
    told = zip(FIELDS, snapshot.statistics() or (), strict=False)  # none if they are not numbers
    return RecordedTensor(
        op_type=name.op_type,
        op_name=name.op_name,
        io=name.io,
        slot=name.slot,
        graph=name.graph,
        sequence=name.sequence,
        dtype=snapshot.dtype,
        shape=snapshot.shape,
        statistics={field: value if math.isfinite(value) else None for field, value in told},
        histogram=snapshot.histogram.tolist(),
        file=file,
        key=key,
        dtensor=dtensor,
    )


def write_mark(directory: Path, mark: RecordedStep) -> None:
    """Write the last file of a step, whole or not at all."""
    write_whole(directory / STEP_FILE, msgspec.json.encode(mark))


def _write_safetensors(path: Path, tensors: list[tuple[str, TensorSnapshot]]) -> None:
    # The largest elements first, so that all are aligned.
    arrays = [(key, snapshot, snapshot.elements()) for key, snapshot in tensors]
    arrays.sort(key=lambda item: -item[2].itemsize)
    header = encode_header(
        TensorInFile(key, snapshot.dtype, snapshot.shape, array.nbytes) for key, snapshot, array in arrays
    )
    with path.open("xb") as file:
        file.write(header)
        for _, _, array in arrays:
            file.write(array.view(np.uint8).data)


def existing_steps(directory: Path) -> set[int]:
    """Return the steps that the directory of a rank has; empty if it does not exist."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return set()
    numbers = (name.removeprefix("step_") for name in names if name.startswith("step_"))
    return {int(number) for number in numbers if number.isascii() and number.isdecimal()}


def has_only_parameters(directory: Path) -> bool:
    """Return whether a step is finished and holds parameters alone, as that after the last update does."""
    try:
        lines = (directory / STATISTICS_FILE).read_bytes().splitlines()
        known = [msgspec.json.decode(line, type=RecordedTensor) for line in lines]
    except (OSError, msgspec.DecodeError):
        return False
    return (directory / STEP_FILE).exists() and {line.op_type for line in known} == {"Parameter"}


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
    place: tuple[int, int] | None = None
    """The chunk of the ring that has its elements, and where they begin there; None if they are elsewhere."""


@dataclass(frozen=True, slots=True, eq=False)
class StepEnd:
    """The last of a step."""

    step: int
    mark: RecordedStep
    """Without the number of tensors, which the writer knows."""
    stacks: Callable[[], bytes]
    overhead: float


@dataclass(frozen=True, slots=True)
class Request:
    """Asks a black box to save what it holds."""

    step: int
    why: str
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Stop:
    """The last of all."""


Queued: TypeAlias = Row | StepEnd | Request | Stop


class Writer:
    """Writes steps to a directory, one after the other, in a thread of its own.

    Nothing that goes wrong is raised: `failure` says it, and what comes later is dropped.

    Args:
        directory: of the rank.
        limit_nbytes: the most that waits to be written.
    """

    def __init__(self, directory: Path, limit_nbytes: int) -> None:
        self.queue: ByteQueue[Queued] = ByteQueue(limit_nbytes)
        self.failure: Exception | None = None
        self.resumed: int | None = None
        """The step that is there and is written again, after a restart at a checkpoint."""
        self._directory = directory
        self._max_file_nbytes = max(1, min(MAX_FILE_NBYTES, limit_nbytes // 4))
        self._files: StepFiles | None = None
        self._unwritten = 0
        """Bytes reserved for what `_files` holds back."""
        # A daemon: a program that leaves without ending the recording must not hang.
        self._thread = threading.Thread(target=self._run, name="dump-ingest-recorder", daemon=True)

    @property
    def losses(self) -> tuple[str, ...]:
        """Which steps were not written as a whole though others were, and why."""
        return ()

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def processor_s(self) -> float:
        """The processor time of the thread so far, in seconds; 0 before it begins, or after it has ended."""
        if self._thread.ident is None or not self._thread.is_alive():
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def close(self) -> None:
        """Write everything that is queued, and end."""
        self.queue.put(Stop())
        self._thread.join()

    def _run(self) -> None:
        while not isinstance(item := self.queue.take(), Stop):
            try:
                self._handle(item)
            except Exception as exc:  # noqa: BLE001  (whatever it is: the training goes on without a recorder)
                self.failure = self.failure or exc
                self._files = None
                self._release()

    def _handle(self, item: Queued | None) -> None:
        if isinstance(item, Row):
            self._unwritten += item.nbytes
            if self.failure is not None:
                self._release()
                return
            if self._files is None:
                directory = self._directory / f"step_{item.step}"
                again = item.step == self.resumed
                self._files = StepFiles(directory, self._max_file_nbytes, again=again)
            if self._files.add(item.name, item.snapshot, item.dtensor):
                self._release()
            return
        if self._files is not None and self.failure is None:
            if isinstance(item, StepEnd):
                self._files.finish(item.stacks(), item.mark)
                self._files = None
            else:
                self._files.flush()
        self._release()

    def _release(self) -> None:
        nbytes, self._unwritten = self._unwritten, 0
        self.queue.release(nbytes)
