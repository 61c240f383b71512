"""The black box: statistics of all steps are written, elements of the last ones only if something happens.

Beside the steps of a dump stands `black-box/` (`ingest.layouts.black_box`). Who finds its `owner.json`
unlocked takes in what the process left behind, see `adopt`.

Its ring has the elements of the last steps, in host memory or in files that outlive the process.

Memory is taken in chunks that steps hold and give back, so that nothing is allocated, and no page is zeroed,
once the ring has gone round. A ring in a directory maps files into memory: the training writes its tensors
into them as into any memory, and after a kill the kernel still has them (`black_box.adopt`).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import structs

from ingest.layouts import black_box
from ingest.layouts.black_box import RingState, Trigger, write_whole
from ingest.layouts.recorder import (
    DIRECTORY,
    STACK_FILE,
    STATISTICS_FILE,
    STEP_FILE,
    RecordedStep,
    RecordedTensor,
)
from ingest.recording.snapshots import TensorSnapshot
from ingest.recording.triggers import SavedSteps, Suspicions, Triggers, write_trigger
from ingest.recording.writer import (
    MAX_FILE_NBYTES,
    Queued,
    Request,
    Row,
    StepEnd,
    StepFiles,
    Stop,
    Writer,
    existing_steps,
    line_of,
    write_mark,
)
from ingest.units import human_bytes
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS
from workers.host.resources import available_nbytes, machine_nbytes
from workers.model import MIB

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: Tensors begin at multiples of this, as vector units like them.
_ALIGNMENT = 64
#: What stands before the data of a chunk in a file: the step that holds it, as int64; -1 for none.
_HEADER_NBYTES = mmap.PAGESIZE
_CHUNK_NBYTES = 32 * MIB


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

    def room(self, step: int, nbytes: int) -> tuple[Bytes, tuple[int, int]] | None:
        """Return memory for a tensor of the step that runs, and its place as in `Row.place`.

        None if all of the ring is in use.
        """
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
            return chunk.data[begin : begin + nbytes], (chunk.number, begin)

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
            if fitting and self.nbytes <= self.limit_nbytes:
                chosen = min(fitting, key=lambda chunk: len(chunk.data))
                self._free = [chunk for chunk in self._free if chunk is not chosen]
                return chosen
            if self.nbytes + size <= self.limit_nbytes:
                try:
                    return self._new_chunk(size)
                except (OSError, MemoryError):
                    # The file system or the machine has no more, and the training needs some, too.
                    self.limit_nbytes = self.nbytes - self.nbytes // 8
            elif self._free:
                dropped = self._free.pop()
                self.nbytes -= len(dropped.data)
                if self.directory is not None:
                    self._path(dropped.number).unlink(missing_ok=True)
            elif self._held:
                self.free(self._held.popleft())
            else:
                return None

    def _new_chunk(self, size: int) -> RingChunk:
        if available_nbytes() < size + _FREE_SHARE * machine_nbytes():
            raise MemoryError("the machine needs the rest for the training")
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

    def _path(self, number: int) -> Path:
        assert self.directory is not None  # noqa: S101  (for mypy: only rings in files have paths)
        return self.directory / f"chunk_{number:05d}"


#: Steps in the ring beyond those that an incident saves: other ranks learn of it that much later.
SLACK = 2
#: How often triggers are looked for while nothing is recorded, as in a job that hangs, and how often at most
#: others are told what the ring holds.
_IDLE_S = 1.0
#: The share of a file system that saving leaves free, so that checkpoints still find room, and the share of
#: the memory that the ring leaves to the training.
_FREE_SHARE = 0.05
#: Of the index of a ring in files: how many lines wait to be written, and how long if no more come.
_INDEX_LINES, _INDEX_S = 64, 0.1
#: How long the end of a recording waits for a file system that does not answer.
_PATIENCE_S = 60.0
#: How long a process that is asked to end stays to save its ring.
GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class BlackBox:
    """What a black box holds and saves."""

    steps: int
    after: int
    keep_nbytes: int
    incidents: int
    budget_nbytes: int
    ring: Path | None
    """Where the files of the ring are; None for memory of the process."""


class RingOwner(msgspec.Struct, frozen=True):
    """The content of `owner.json`."""

    pid: int
    host: str
    rank: int
    incidents: int
    ring: str
    """The directory with the elements; "" if they are in memory."""


class RingLine(msgspec.Struct, frozen=True):
    """One line of the index of a ring in files."""

    tensor: RecordedTensor
    nbytes: int
    place: tuple[int, int] | None


class BlackBoxWriter(Writer):
    """Writes statistics of each step, holds its elements, and saves them if a trigger asks for it.

    What cannot be written is left out and noted in `lost`: the next step is tried again.

    Args:
        directory: of the rank, in that of the recorder, in the dump.
        limit_nbytes: the most that waits to be written, besides the ring.
        choice: what is held and saved.
        rank: the number of the rank.
        every: the difference between the numbers of recorded steps.
        fail: told what could not be done.
    """

    def __init__(
        self,
        directory: Path,
        limit_nbytes: int,
        choice: BlackBox,
        *,
        rank: int,
        every: int,
        fail: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(directory, limit_nbytes)
        self.incidents: dict[str, list[int]] = {}
        """The steps that were saved, by what triggered it."""
        self.saved_nbytes = 0
        self._choice, self._rank, self._fail = choice, rank, fail
        self._home = directory.parent.parent / black_box.DIRECTORY / directory.name
        self._reach = (choice.steps - 1) * every, choice.after * every
        self._suspicions = Suspicions()
        self._step = -1
        """The newest step of which anything was seen."""
        self._index: list[RingLine] = []
        self._left_out = 0
        self._stacks = b"{}"
        self._in_part = -1
        self._told_to: dict[Trigger, int] = {}
        """By trigger, the first step of which it was not told yet whether the ring still held it."""
        self._end: StepEnd | None = None
        self._all_left_out = 0
        self._told_at = -math.inf
        self.lost: dict[str, list[int]] = {}
        """The steps that are not written, or only in part, by the reason."""
        self._untold = 0

    @property
    def losses(self) -> tuple[str, ...]:
        """Which steps were not written as a whole though others were, and why."""
        told = []
        for reason, steps in self.lost.items():
            several = f"{len(steps)} steps from {steps[0]} to {steps[-1]} were"
            which = f"step {steps[0]} was" if len(steps) == 1 else several
            told.append(f"{which} not written as a whole: {reason}")
        return tuple(told)

    def start(self) -> None:
        """Take in what a process before this one has left, claim the ring, and begin to write.

        Raises:
            OSError: the directory of the dump, or that of the ring, cannot be written.
        """
        adopt_ring(self._home, is_next=True)
        ring = None
        if self._choice.ring is not None:
            name = xxhash.xxh3_64_hexdigest(os.fsencode(self._home.resolve()))
            ring = self._choice.ring / f"{black_box.DIRECTORY}-{name}"
            shutil.rmtree(ring, ignore_errors=True)
            ring.mkdir(parents=True)
        self._home.mkdir(parents=True, exist_ok=True)
        owner = RingOwner(
            os.getpid(),
            socket.gethostname(),
            self._rank,
            self._choice.incidents,
            "" if ring is None else str(ring.resolve()),
        )
        file = _locked(self._home)
        file.write(msgspec.json.encode(owner))
        file.flush()
        self.ring = Ring(self._choice.keep_nbytes, self._choice.steps + SLACK, ring)
        self._triggers = Triggers(self._home.parent, self._rank, *self._reach, self._choice.incidents)
        super().start()

    def may_save(self, step: int) -> bool:
        """Return whether a step may ever be saved, so that its elements are worth their copy."""
        return self.saved_nbytes < self._choice.budget_nbytes and not self._triggers.is_spent(step)

    def close(self) -> None:
        """Write what is queued, save what is triggered, and give up the ring."""
        self.queue.put(Stop())
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            self._fail(
                "the end", TimeoutError(f"{self._directory} takes nothing more; the rest was left out")
            )
            return  # the ring stays: whoever comes next takes it in
        self.ring.close()
        _give_up(self._home, self.ring.directory)

    def _run(self) -> None:
        while True:
            item = self.queue.take(_INDEX_S if self._index else _IDLE_S)
            try:
                self._handle(item)
            except Exception as exc:  # noqa: BLE001  (whatever it is: the training goes on, and the next step is tried)
                self._lose(exc)
            if isinstance(item, Stop):
                return

    def _lose(self, exc: Exception) -> None:
        """Note that the step is not written, or only in part: the mark of the next one that is says so."""
        self._files = None
        if self._step not in (steps := self.lost.setdefault(_reason(exc), [])):
            steps.append(self._step)
            self._untold += 1

    def _handle(self, item: Queued | None) -> None:
        if isinstance(item, Row):
            try:
                self._add(item)
            finally:
                self.queue.release(item.nbytes)
            return
        if isinstance(item, StepEnd):
            self._finish(item)
            return
        if isinstance(item, Request):
            self._triggers.add(max(item.step, 0), item.why)
        if self._files is not None:
            self._files.flush()
        self._flush_index()
        self._look(is_urgent=True)
        if isinstance(item, Request):
            item.done.set()

    def _add(self, row: Row) -> None:
        if row.step != self._step:
            self._begin(row.step)
        held = self.ring.running(row.step)
        row = self._in_ring(row)
        statistics = row.snapshot.statistics()
        held.rows.append(row)
        if self.ring.directory is not None:
            self._index.append(
                RingLine(line_of(row.name, row.snapshot, row.dtensor), row.snapshot.nbytes, row.place)
            )
            if len(self._index) >= _INDEX_LINES:
                self._flush_index()
        if self._files is not None:
            self._files.add(row.name, row.snapshot.without_elements(), row.dtensor)
        if why := self._suspicions.see(row.step, row.name, statistics):
            self._triggers.add(row.step, why)

    def _begin(self, step: int) -> None:
        """Begin to write the statistics of a step, unless an incident of an earlier process has saved it."""
        self._step, self._files, self._left_out = step, None, 0
        directory = self._directory / f"step_{step}"
        earlier = _mark_of(directory)
        if not earlier.incident or earlier.not_saved:
            shutil.rmtree(directory, ignore_errors=True)
            self._files = StepFiles(directory, self._max_file_nbytes)

    def _in_ring(self, row: Row) -> Row:
        """Return a row whose elements are in the ring, if it had any: those of a device come here first."""
        if row.place is not None or not row.snapshot.nbytes:
            return row
        if (room := self.ring.room(row.step, row.snapshot.nbytes)) is None:
            self._left_out += 1
            return replace(row, snapshot=row.snapshot.without_elements())
        elements, (data, place) = row.snapshot.elements(), room
        copy = data.view(elements.dtype)
        copy[:] = elements
        snapshot = replace(row.snapshot, _row=row.snapshot.statistics(), _elements=copy)
        return replace(row, snapshot=snapshot, place=place)

    def _finish(self, end: StepEnd) -> None:
        held, files = self.ring.finish(end.step), self._files
        self._step, self._files = max(end.step, self._step), None
        held.stacks = self._stacks = end.stacks()
        left_out = end.mark.left_out + self._left_out
        problems = (*end.mark.problems, *(self.losses if self._untold else ()))
        held.mark = structs.replace(end.mark, tensors=len(held.rows), left_out=left_out, problems=problems)
        self._end, self._all_left_out = end, self._all_left_out + left_out
        try:
            self._flush_index()
            if why := self._suspicions.end(is_whole=not end.mark.not_looked_at):
                self._triggers.add(end.step, why)
            if files is not None:
                files.finish(held.stacks, held.mark)
                self._untold = 0
        finally:
            self.ring.hold(held)
        self._look(is_urgent=False)

    def _look(self, *, is_urgent: bool) -> None:
        """Look for triggers, and save what they ask for and the ring has.

        A trigger is obeyed one step later, so that a rank that went wrong first is heard first; and then all
        ranks save the same steps.
        """
        self._triggers.look(max(self._step, 0))
        for incident in self._triggers.incidents():
            if is_urgent or self._step > incident.trigger.step:
                for step in filter(incident.has, self.ring.steps):
                    self._save(step, incident)
                # A step that runs is not over, and may still be saved.
                self._tell_gone(incident.trigger, self._step + (not is_urgent))
            if is_urgent and incident.has(self._step) and self._step != self._in_part:
                self._save_in_part(incident)
        self._tell()

    def _tell(self) -> None:
        if self._end is None or time.monotonic() < self._told_at + _IDLE_S:
            return
        self._told_at = time.monotonic()
        state = RingState(
            rank=self._rank,
            host=socket.gethostname(),
            at=round(time.time(), 3),
            steps=tuple(step for step in self.ring.steps if step >= self._end.step - self._reach[0]),
            nbytes=self.ring.nbytes,
            keep_nbytes=self._choice.keep_nbytes,
            saved_nbytes=self.saved_nbytes,
            budget_nbytes=self._choice.budget_nbytes,
            left_out=self._all_left_out,
            overhead=round(self._end.overhead, 4),
            lost=sum(map(len, self.lost.values())),
        )
        with contextlib.suppress(OSError):  # who watches sees that what was told last is old
            write_whole(self._home / black_box.STATE_FILE, msgspec.json.encode(state))

    def _save(self, step: int, incident: SavedSteps) -> None:
        if (held := self.ring.take(step)) is None:
            return
        try:
            directory = self._directory / f"step_{step}"
            mark = structs.replace(
                held.mark,
                incident=str(incident.trigger),
                not_saved=_why_not(self._directory, held, incident, self._choice, self.saved_nbytes),
            )
            if not mark.not_saved:
                try:
                    write_held(directory, held, mark, self._max_file_nbytes)
                except OSError as exc:
                    _remove_halves(directory)
                    mark = structs.replace(mark, not_saved=_reason(exc))
                else:
                    self.saved_nbytes += held.nbytes
                    self.incidents.setdefault(str(incident.trigger), []).append(step)
            if mark.not_saved and directory.exists():
                write_mark(directory, mark)
        finally:
            self.ring.free(held)

    def _tell_gone(self, trigger: Trigger, end: int) -> None:
        """Say, once, which steps of an incident before `end` the ring did not hold any more."""
        begin, end = self._told_to.get(trigger, trigger.first), min(trigger.last + 1, end)
        self._told_to[trigger] = max(begin, end)
        for step in range(begin, end):
            directory = self._directory / f"step_{step}"
            if directory.exists() and not (mark := _mark_of(directory)).incident:
                gone = "the ring did not hold it any more"
                write_mark(directory, structs.replace(mark, incident=str(trigger), not_saved=gone))

    def _save_in_part(self, incident: SavedSteps) -> None:
        """Save the step that runs, as far as it is: it may never end. If it does, it is saved again."""
        held = self.ring.unfinished(self._step)
        if held is None or _why_not(self._directory, held, incident, self._choice, self.saved_nbytes):
            return
        self._in_part = self._step
        held.stacks = self._stacks
        mark = RecordedStep(tensors=0, ended="saved while it ran", incident=str(incident.trigger))
        write_held(self._directory / f"step_{self._step}", held, mark, self._max_file_nbytes)

    def _flush_index(self) -> None:
        lines, self._index = self._index, []
        if lines and self.ring.directory is not None:
            with (self.ring.directory / f"step_{self._step}.jsonl").open("ab") as file:
                file.write(msgspec.json.Encoder().encode_lines(lines))


def _reason(exc: Exception) -> str:
    return f"{type(exc).__name__}: {getattr(exc, 'strerror', None) or exc}"[:300]


def _why_not(
    directory: Path, held: HeldStep, incident: SavedSteps, choice: BlackBox, saved_nbytes: int
) -> str:
    if incident.is_beyond_budget:
        return f"{choice.incidents} incidents of this run were saved, and no more may be"
    if saved_nbytes + held.nbytes > choice.budget_nbytes:
        return f"incidents may take {human_bytes(choice.budget_nbytes)} of each process, and have"
    disk = shutil.disk_usage(directory)
    if disk.free - held.nbytes < _FREE_SHARE * disk.total:
        return f"the disk has {human_bytes(disk.free)} left, and {human_bytes(held.nbytes)} are to be saved"
    return ""


def write_held(directory: Path, held: HeldStep, mark: RecordedStep, max_file_nbytes: int) -> None:
    """Write a step with its elements, in the place of its statistics.

    Raises:
        OSError: the disk is full, or gone.
    """
    files = StepFiles(directory, max_file_nbytes, again=True)
    for row in held.rows:
        files.add(row.name, row.snapshot, row.dtensor)
    files.finish(held.stacks, mark)


#: By directory the locks of this process, which do not keep it out itself.
_own: dict[Path, BinaryIO] = {}


def _locked(home: Path) -> BinaryIO:
    """Open and lock the file of the owner, and empty it.

    The lock is one of POSIX: children that are forked do not have it, and it ends with the process.

    Raises:
        OSError: it is locked, or cannot be written.
    """
    file = (home / black_box.OWNER_FILE).open("a+b")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    file.truncate(0)
    _own[home.resolve()] = file
    return file


def _give_up(home: Path, ring: Path | None) -> None:
    if ring is not None:
        shutil.rmtree(ring, ignore_errors=True)
    _remove_told(home)
    _own.pop(home.resolve()).close()
    with contextlib.suppress(OSError):  # where other ranks, or triggers, are
        home.rmdir()
        home.parent.rmdir()


def adopt(root: Path) -> list[str]:
    """Take in what the rings of processes that died have left, and return what became of each.

    Of a ring in files, the elements of its steps are saved. Of a ring in memory, nothing is left. The last
    step says so if its own are not saved.

    Args:
        root: a dump; one without black boxes is left alone.
    """
    found = []
    for home in sorted((root / black_box.DIRECTORY).glob("rank_*")):
        try:
            found.append(adopt_ring(home))
        except OSError as exc:
            found.append(f"{home.name}: what a process that died has left cannot be taken in: {exc}")
    return list(filter(None, found))


def adopt_ring(home: Path, *, is_next: bool = False) -> str:
    """Take in one ring; return "" if there is none, or if its process lives.

    Args:
        home: where its owner is named.
        is_next: whether the caller is the next process of this rank, so that the one before cannot live.
    """
    if home.resolve() in _own or not (home / black_box.OWNER_FILE).exists():
        return ""
    with (home / black_box.OWNER_FILE).open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return ""
        try:
            owner = msgspec.json.decode(file.read(), type=RingOwner)
        except msgspec.DecodeError:  # it died while it began
            return ""
        # Some file systems do not share locks between hosts.
        if owner.host != socket.gethostname() and not is_next:
            return ""
        told = _adopt_of(home, owner)
        if owner.ring:
            shutil.rmtree(owner.ring, ignore_errors=True)
        _remove_told(home)
    return told


def _remove_told(home: Path) -> None:
    """Remove what a process that has ended said of itself; the owner last, because it says who takes in."""
    for name in (black_box.STATE_FILE, black_box.OWNER_FILE):
        (home / name).unlink(missing_ok=True)


def _adopt_of(home: Path, owner: RingOwner) -> str:
    directory = home.parent.parent / DIRECTORY / home.name
    died = f"the process {owner.pid} on {owner.host} died"
    steps = existing_steps(directory)
    for step in steps:
        _remove_halves(directory / f"step_{step}")
    held = list(_left_behind(Path(owner.ring), directory)) if owner.ring else []
    steps |= {one.step for one in held}
    if not steps:
        return died
    last = max(steps)
    triggers = Triggers(home.parent, owner.rank, 0, 0, owner.incidents)
    trigger = Trigger(last, owner.rank, died, min((one.step for one in held), default=last), last)
    if triggers.is_spent(last):
        held = []
    elif held:
        write_trigger(home.parent, trigger)
    for one in held:
        ended = died if one.step == last else one.mark.ended
        mark = structs.replace(one.mark, incident=str(trigger), ended=ended)
        write_held(directory / f"step_{one.step}", one, mark, MAX_FILE_NBYTES)
    saved = [one.step for one in held]
    told = (
        f"steps {saved[0]} to {saved[-1]} were saved" if saved else "the elements of its last steps are lost"
    )
    if last not in saved:
        newest = directory / f"step_{last}"
        mark = _mark_of(newest)
        newest.mkdir(parents=True, exist_ok=True)
        incident, ended = mark.incident or str(trigger), mark.ended or died
        write_mark(newest, structs.replace(mark, incident=incident, ended=ended, not_saved=f"{died}: {told}"))
    return f"{home.name}: {died}: {told}"


def _remove_halves(directory: Path) -> None:
    """Remove what a process that died while it saved a step had written of it."""
    if (half := directory / f".{STATISTICS_FILE}").exists():
        for path in directory.glob("recorded-tensor*"):
            path.unlink()
        half.unlink()


def _mark_of(directory: Path) -> RecordedStep:
    try:
        return msgspec.json.decode((directory / STEP_FILE).read_bytes(), type=RecordedStep)
    except (OSError, msgspec.DecodeError):
        with contextlib.suppress(OSError):
            lines = (directory / STATISTICS_FILE).read_bytes().count(b"\n")
            return RecordedStep(tensors=lines)
        return RecordedStep(tensors=0)


def _left_behind(ring: Path, directory: Path) -> Iterator[HeldStep]:
    stacks = max(directory.glob(f"step_*/{STACK_FILE}"), key=lambda path: path.stat().st_mtime, default=None)
    numbers = sorted(int(path.stem.removeprefix("step_")) for path in ring.glob("step_*.jsonl"))
    for step in numbers:
        mark = _mark_of(directory / f"step_{step}")
        rows, lost = [], 0
        for text in (ring / f"step_{step}.jsonl").read_bytes().rpartition(b"\n")[0].splitlines():
            line = msgspec.json.decode(text, type=RingLine)
            snapshot = _snapshot_of(line, ring, step)
            lost += bool(line.nbytes) and not snapshot.nbytes
            rows.append(Row(step, line.tensor.name, snapshot, 0, line.tensor.dtensor))
        yield HeldStep(
            step,
            rows,
            mark=structs.replace(mark, left_out=mark.left_out + lost),
            stacks=b"{}" if stacks is None else stacks.read_bytes(),
        )


def _snapshot_of(line: RingLine, ring: Path, step: int) -> TensorSnapshot:
    told = line.tensor.statistics
    values = (math.nan if (value := told.get(name)) is None else value for name in FIELDS)
    snapshot = TensorSnapshot(
        line.tensor.dtype,
        line.tensor.shape,
        0,
        _row=tuple(values) if told else None,
        histogram=line.tensor.bins,
    )
    if line.place is None:
        return snapshot
    number, begin = line.place
    with contextlib.suppress(OSError, ValueError):
        chunk = np.memmap(ring / f"chunk_{number:05d}", np.uint8, "r")
        if len(chunk) > _HEADER_NBYTES and int(chunk[:8].view(np.int64)[0]) == step:
            data = chunk[_HEADER_NBYTES:][begin : begin + line.nbytes]
            elements = data.view(from_name(line.tensor.dtype).to_numpy())
            return replace(snapshot, nbytes=line.nbytes, _elements=elements)
    return snapshot
