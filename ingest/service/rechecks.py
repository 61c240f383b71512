"""Reads committed files of the dump again, while nothing else is to be done, and compares their digests.

A file that is written in place and given its old time has the size and the time that were committed. The time
of its inode shows it, if this process has listed it before; otherwise only its content does. So files whose
inode has changed come first, then all others in turn, at a limited rate. Equal content never makes another
generation.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from ingest.dispatch.clients import TaskClient, shares_of, submit
from ingest.dispatch.window import TaskMonitor, TaskWindow, batches
from ingest.reader.catalog import Damage
from ingest.reader.verifying import ExpectedObjects, damage_in_listing
from ingest.steps.events import ContentReplaced, RecheckFailed, StepDamaged
from ingest.steps.state import StepState, StepTable
from workers.errors import ClusterError, DumpIngestError, SourceChanged, StoreError
from workers.model import MIB, SourceFile, StepKey
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.tasks import run as tasks
from workers.tasks.read_back import ReadBackJob

#: Source bytes and files of one task, about: what a conversion may have to wait for.
_JOB_NBYTES = 64 * MIB
_JOB_FILES = 1000
#: What one task reads: a small step alone would take longer to hand over, and to open, than to read.
_Batch: TypeAlias = tuple[ReadBackJob, ...]
#: Tasks in flight, if somebody waits for the end; else one.
_AT_ONCE = 8
#: Dask runs tasks of a higher priority first; conversions have 0, read-backs -10.
_PRIORITY = -20
#: How often a watcher reads all committed files again at most, in seconds.
_ROUND_S = 3600.0
#: How long nothing is read after a task failed, in seconds, unless somebody waits for the end.
_PAUSE_S = 60.0


@dataclass(slots=True)
class Rechecks:
    """Compares files of held steps with their commits. Called by one thread."""

    table: StepTable
    root: str
    store: StoreAddress
    connect: Callable[[], TaskClient]
    rate: float
    """Bytes per second, on average; 0 for none at all, infinity for all at once, and once only."""
    resources: Mapping[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    monitor: TaskMonitor = field(default_factory=TaskMonitor)
    _turn: deque[StepState] = field(default_factory=deque)
    """Steps that were not read in this round."""
    _doubtful: list[StepState] = field(default_factory=list)
    """Steps of which the last scan has shown files whose inode has changed."""
    _jobs: deque[ReadBackJob] = field(default_factory=deque)
    _window: TaskWindow[_Batch] = field(init=False)
    _client: TaskClient | None = None
    _next_at: float = 0.0
    _rounds: int = 0
    _round_at: float = -math.inf

    def __post_init__(self) -> None:
        self._window = TaskWindow(_AT_ONCE, describe=lambda batch: str(batch[0].key), monitor=self.monitor)

    @property
    def is_once(self) -> bool:
        """Whether everything is read once, and then nothing any more."""
        return self.rate == float("inf")

    @property
    def is_reading(self) -> bool:
        """Whether files are being read, or the next are to be read soon."""
        return bool(self._turn or self._jobs or self._window.jobs)

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be read for somebody who waits for it."""
        return self.is_once and (not self._rounds or self.is_reading)

    def follow_scan(self) -> None:
        """Find the steps with doubtful files: only a scan shows more of them."""
        self._doubtful = [state for state in self.table if state.doubtful]

    def poll(self, *, is_idle: bool) -> list[ContentReplaced | RecheckFailed]:
        """Take in what was read, and have more read if it is time to. Does not wait.

        Args:
            is_idle: whether there is nothing better to do.

        Raises:
            ClusterError: the scheduler is missing; call again later.
        """
        if not self.rate:
            return []
        events = [
            event
            for batch, results in self._window.ended(self._client)
            for job, result in zip(
                batch, results if isinstance(results, list) else [results] * len(batch), strict=True
            )
            if (event := self._collect(job, result)) is not None
        ]
        try:
            if is_idle:
                self._submit_what_is_due()
        except ClusterError:
            if not events:  # none of them may be lost: the next call raises it
                raise
        return events

    def _submit_what_is_due(self) -> None:
        at_once = _AT_ONCE if self.is_once else 1
        while self.clock() >= self._next_at and len(self._window.jobs) < at_once:
            batch = self._next_batch()
            if not batch:
                break
            try:
                self._submit(batch)
            except ClusterError:
                self._jobs.extendleft(reversed(batch))
                raise

    def _submit(self, batch: _Batch) -> None:
        client = self.connect()
        if client is not self._client:
            self._jobs.extend(chain.from_iterable(self._window.clear()))  # lost with their client
            self._client = client
        future = submit(
            client,
            tasks.run_recheck,
            tasks.pack(batch),
            key=f"recheck-{batch[0].fingerprint[:15]}-{time.time_ns()}",
            priority=_PRIORITY,
            resources=shares_of(self.resources),
        )
        nbytes = sum(job.nbytes for job in batch)
        self._window.add(future, batch, nbytes)
        self._next_at = self.clock() + (0.0 if self.is_once else nbytes / self.rate)

    def _next_batch(self) -> _Batch:
        for state in () if self.is_once or self._jobs else self._doubtful:
            if state.doubtful and _may_be_read(state):
                doubtful = [file for file in _files(state) if file.path in state.doubtful]
                return (self._jobs_of(state, doubtful)[0],)
        return tuple(self._small_enough())

    def _small_enough(self) -> Iterator[ReadBackJob]:
        """Take what is next from the steps whose turn it is, as much as one task reads."""
        nbytes = files = 0
        while self._jobs or self._has_turn():
            if not self._jobs:
                state = self._turn.popleft()
                self._jobs.extend(self._jobs_of(state, _files(state)) if _may_be_read(state) else ())
                continue
            is_first = not files
            nbytes, files = nbytes + self._jobs[0].nbytes, files + len(self._jobs[0].files)
            if not is_first and (nbytes > _JOB_NBYTES or files > _JOB_FILES):
                return
            yield self._jobs.popleft()

    def _has_turn(self) -> bool:
        """Return whether a step is left in this round; begin another one if not."""
        is_due = not self._rounds if self.is_once else self.clock() >= self._round_at + _ROUND_S
        if not self._turn and is_due:
            self._rounds += 1
            held = [state for state in self.table if state.held is not None]
            if held:
                self._round_at = self.clock()
            random.shuffle(held)  # processes that are started often would always read the same steps
            self._turn.extend(held)
        return bool(self._turn)

    def _jobs_of(self, state: StepState, files: list[SourceFile]) -> list[ReadBackJob]:
        return [
            ReadBackJob(state.key, state.committed or "", self.root, self.store, batch)
            for batch in batches(files, _JOB_NBYTES, _JOB_FILES)
        ]

    def _collect(
        self, job: ReadBackJob, result: tuple[str, ...] | DumpIngestError
    ) -> ContentReplaced | RecheckFailed | None:
        state = self.table.get(job.key)
        if state is None or state.committed != job.fingerprint or not _may_be_read(state):
            return None  # it has changed meanwhile
        if isinstance(result, SourceChanged):
            return None
        if isinstance(result, DumpIngestError):
            self._next_at = self.clock() + (0.0 if self.is_once else _PAUSE_S)
            return RecheckFailed(job.key, result)
        # Not of a file whose inode has changed since it was to be read: it may have been read before.
        now = {file.path: file.version for file in _files(state)}
        state.doubtful -= {file.path for file in job.files if now.get(file.path) == file.version}
        if not result:
            return None
        state.record_rewrites(1)
        state.held = None
        return ContentReplaced(job.key, result)


def _may_be_read(state: StepState) -> bool:
    """Return whether the store has the step as it was listed, and nothing is done with it."""
    return (
        state.held is not None
        and state.committed is not None
        and state.work is None
        and not state.is_removing
    )


def _files(state: StepState) -> list[SourceFile]:
    return [] if state.listing is None else list(state.listing.files)


@dataclass(slots=True)
class StartupCheck:
    """Lists, once and in a thread of its own, the steps that were committed before the service began."""

    objects: ObjectStore
    _thread: threading.Thread | None = None
    _damages: list[Damage] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread is None or self._thread.is_alive()

    def poll(self, table: StepTable) -> list[StepDamaged]:
        """Start the check on the first call; after it has ended, return the damage once."""
        if self._thread is None:
            expected = expected_of(table)
            # Daemon: a store that does not answer must not keep the process from ending.
            self._thread = threading.Thread(
                target=self._run, args=(expected,), name="dump-ingest-damage", daemon=True
            )
            self._thread.start()
        if self._thread.is_alive() or not self._damages:
            return []
        damages, self._damages = self._damages, []
        return [StepDamaged(damage.key, damage.reason, self.objects.address.url) for damage in damages]

    def _run(self, expected: Mapping[StepKey, ExpectedObjects]) -> None:
        try:
            self._damages = damage_in_listing(self.objects, expected)
        except StoreError:
            return  # what else asks the store says so


def expected_of(table: StepTable) -> dict[StepKey, ExpectedObjects]:
    """Return the objects that a listing must show of each step committed before the service began."""
    return {state.key: state.stored for state in table if state.stored is not None}
