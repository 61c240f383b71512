"""Tasks in flight: a bounded number of them, and whether they come to an end.

A file that blocks its reader, in a file system that has gone, keeps a worker busy for ever, with a heartbeat
that is fine. A scheduler may lose a task without a word. Both are noticed here, by a monotonic clock.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ingest.dispatch.clients import (
    HANGS_HINT,
    RESTART_S,
    ClusterAnswer,
    TaskClient,
    TaskFuture,
    ask,
    replace_worker,
    result_of,
    shares_of,
    submit,
)
from workers.errors import ClusterError, DumpIngestError, WorkerDied
from workers.events import Event, Observer
from workers.model import MIB, SourceFile
from workers.tasks import run as tasks
from workers.tasks.read_back import ReadBackJob

#: Only older tasks are asked about, and how often, in seconds.
_YOUNG_S, _PAUSE_S = 30.0, 10.0
#: What a task may take in addition for each byte that it reads.
_S_PER_BYTE = 1 / MIB
#: How often in a row the scheduler must not know a task: it may have ended a moment before.
_MISSED = 2
#: A scheduler that has not answered for this time, in seconds, hangs; it is also the interval of reports.
_SILENT_S = 120.0


@dataclass(frozen=True, slots=True)
class WorkerReplaced(Event):
    """A worker was replaced, because a task on it did not come to an end."""

    worker: str
    task: str
    seconds: float


Job = TypeVar("Job")


@dataclass(eq=False, slots=True)
class Task(Generic[Job]):
    """A task in flight, with the job that it does."""

    job: Job
    name: str
    nbytes: int
    future: TaskFuture
    submitted_at: float


@dataclass(slots=True)
class _Seen:
    place: tuple[str, Any] | None = None
    """Its worker, and why the task needs it: to run itself, or to run the tasks for which it waits."""
    since: float = 0.0
    missed: int = 0


@dataclass(slots=True)
class TaskMonitor:
    """Asks a scheduler about tasks, in a thread: it may take long to answer. Otherwise single-threaded.

    One for all tasks of a service: a task that waits for another one of them is not judged by how long.
    """

    timeout_s: float = 600.0
    """How long a task may run on one worker, besides a second for each MiB that it reads."""
    clock: Callable[[], float] = time.monotonic
    young_s: float = _YOUNG_S
    pause_s: float = _PAUSE_S
    notify: Observer = lambda _: None
    """Called with each worker that is replaced, in the thread that calls `look`."""
    _tasks: dict[Any, Task[Any]] = field(default_factory=dict)
    """The tasks in flight, by their keys. Bounded by those who add them."""
    _seen: dict[Any, _Seen] = field(default_factory=dict)
    _given_up: dict[Any, ClusterError] = field(default_factory=dict)
    """Why tasks are given up whose owners have not asked since."""
    _replaced_at: dict[str, float] = field(default_factory=dict)
    _asked_at: float = 0.0
    _answers: queue.SimpleQueue[ClusterAnswer] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _silent_since: float | None = None
    """When the scheduler was asked first since its last answer; None if it answers."""
    _reported_at: float = -math.inf

    def add(self, task: Task[Any]) -> None:
        """Look after a task that was submitted."""
        self._tasks[task.future.key] = task

    def drop(self, task: Task[Any]) -> None:
        """Look after a task no longer; call it for each that was added."""
        for of_tasks in (self._tasks, self._seen, self._given_up):
            of_tasks.pop(task.future.key, None)

    def check(self, client: TaskClient, tasks: Iterable[Task[Job]]) -> list[tuple[Task[Job], ClusterError]]:
        """Return the tasks that are given up, each with its error; ask about all tasks if it is time to.

        The worker of a task that runs for too long is being replaced when this returns.
        """
        while not self._answers.empty():
            answer = self._answers.get()
            for key in answer.states.keys() & self._tasks.keys() - self._given_up.keys():
                if error := self._judge(client, self._tasks[key], answer):
                    self._given_up[key] = error
        self._ask_if_due(client)
        if not self._given_up:
            return []
        return [(task, self._given_up[key]) for task in tasks if (key := task.future.key) in self._given_up]

    def require_answer(self) -> None:
        """Do nothing if the scheduler answers, or if this has told a moment ago that it does not.

        Raises:
            ClusterError: it has not answered for minutes.
        """
        since, now = self._silent_since, self.clock()
        if since is None or now - max(since, self._reported_at) < _SILENT_S:
            return
        self._reported_at = now
        raise ClusterError(f"the Dask scheduler has not answered for {now - since:.0f} s", hint=HANGS_HINT)

    def _ask_if_due(self, client: TaskClient) -> None:
        """Ask about the tasks that are not young, in a thread, unless one is asking still."""
        now = self.clock()
        is_asking = self._thread is not None and self._thread.is_alive()
        if is_asking or now - self._asked_at < self.pause_s:
            return
        self._asked_at = now
        old = [key for key, task in self._tasks.items() if now - task.submitted_at >= self.young_s]
        if old:
            self._thread = threading.Thread(
                target=self._ask, args=(client, old), name="dump-ingest-tasks", daemon=True
            )
            self._thread.start()
        else:
            self._silent_since = None

    def _judge(self, client: TaskClient, task: Task[Any], answer: ClusterAnswer) -> ClusterError | None:
        key, now = task.future.key, self.clock()
        seen = self._seen.setdefault(key, _Seen())
        if answer.states[key] is None:
            seen.missed += 1
            if seen.missed < _MISSED or task.future.status != "pending":
                return None
            return ClusterError(f"{task.name}: the scheduler does not know the task any more")
        seen.missed = 0
        place = self._place_of(key, answer)
        if place is None or place != seen.place:
            seen.place, seen.since = place, now
            return None
        worker, for_s = place[0], now - seen.since
        if for_s < self.timeout_s + task.nbytes * _S_PER_BYTE:
            return None
        self._replaced_at = {name: at for name, at in self._replaced_at.items() if now - at < RESTART_S}
        if worker not in self._replaced_at:  # for another task that it had
            self._replaced_at[worker] = now
            threading.Thread(
                target=replace_worker, args=(client, worker), name="dump-ingest-replace", daemon=True
            ).start()
            self.notify(WorkerReplaced(worker, task.name, for_s))
        return WorkerDied(
            f"{task.name}: a task did not come to an end on {worker} for {for_s:.0f} s; "
            "the worker is replaced"
        )

    def _place_of(self, key: Any, answer: ClusterAnswer) -> tuple[str, Any] | None:
        """Return where a task is, and why it needs its worker; None if it waits for its turn.

        A scheduler gives a worker more tasks than it has threads, and some overtake others. But a worker may
        also be kept busy by the task of a client that has gone, which the scheduler has forgotten.
        """
        worker = answer.assigned.get(key)
        if worker is None:
            return None
        at_work = answer.at_work.get(worker, frozenset())
        if key in at_work:
            return worker, key
        return None if at_work & self._tasks.keys() else (worker, at_work)

    def _ask(self, client: TaskClient, keys: list[Any]) -> None:
        asked_at = self.clock()
        answer = ask(client, keys)
        if answer is not None:
            self._answers.put(answer)
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = asked_at


@dataclass(slots=True)
class TaskWindow(Generic[Job]):
    """Tasks in flight, each with the job that it does, for those who must not wait for results.

    A task that is larger than the window goes alone. Single-threaded: all methods are called by one thread.
    """

    max_tasks: float
    max_nbytes: float = math.inf
    describe: Callable[[Any], str] = lambda job: str(job.key)
    monitor: TaskMonitor = field(default_factory=TaskMonitor)
    _inflight: dict[TaskFuture, Task[Job]] = field(default_factory=dict)
    _nbytes: int = 0
    _ended: queue.SimpleQueue[TaskFuture] = field(default_factory=queue.SimpleQueue)

    @property
    def jobs(self) -> list[Job]:
        """The jobs in flight, in the order in which they were added."""
        return [task.job for task in self._inflight.values()]

    def has_room(self, nbytes: int) -> bool:
        """Return whether a task of this size may be submitted now."""
        if not self._inflight:
            return True
        return len(self._inflight) < self.max_tasks and self._nbytes + nbytes <= self.max_nbytes

    def add(self, future: TaskFuture, job: Job, nbytes: int) -> None:
        """Count a task that was just submitted."""
        task = self._inflight[future] = Task(job, self.describe(job), nbytes, future, self.monitor.clock())
        self.monitor.add(task)
        self._nbytes += nbytes
        # Called in a thread of the client: only the queue is touched.
        future.add_done_callback(lambda _: self._ended.put(future))

    def ended(
        self, client: TaskClient | None, timeout_s: float = 0.0
    ) -> list[tuple[Job, Any | DumpIngestError]]:
        """Return the jobs that have ended since the last call, with result or error, and forget them.

        A task that the scheduler has lost, or that keeps its worker busy for too long, ends with an error.

        Args:
            client: to which the tasks were submitted; None if none was yet.
            timeout_s: how long to wait for the first.
        """
        results: list[tuple[Job, Any | DumpIngestError]] = []
        with suppress(queue.Empty):
            while True:
                future = self._ended.get(timeout=timeout_s)
                timeout_s = 0.0
                if future in self._inflight:  # else its job was dropped
                    task = self._remove(future)
                    results.append((task.job, result_of(future, task.name)))
        if client is not None and self._inflight:
            for task, error in self.monitor.check(client, self._inflight.values()):
                self._remove(task.future).future.cancel()
                results.append((task.job, error))
        return results

    def drop(self, chooses: Callable[[Job], bool] = lambda _: True) -> None:
        """Cancel and forget the tasks of the jobs that a function chooses."""
        for future in [future for future, task in self._inflight.items() if chooses(task.job)]:
            self._remove(future)
            future.cancel()

    def clear(self) -> list[Job]:
        """Forget all tasks, which were lost with their client, and return their jobs."""
        return [self._remove(future).job for future in list(self._inflight)]

    def _remove(self, future: TaskFuture) -> Task[Job]:
        task = self._inflight.pop(future)
        self._nbytes -= task.nbytes
        self.monitor.drop(task)
        return task


#: Tasks at once that read files back. Dask runs tasks of a higher priority first; conversions have 0.
READ_BACKS_AT_ONCE, _PRIORITY = 8, -10


@dataclass(slots=True)
class ReadBackQueue:
    """Files that are read back, after the conversions: what waits, and a bounded number of tasks."""

    connect: Callable[[], TaskClient]
    """Returns a connected client, a new one if the last was lost, or raises ClusterError."""
    window: TaskWindow[ReadBackJob]
    resources: Mapping[str, float] = field(default_factory=dict)
    waiting: deque[ReadBackJob] = field(default_factory=deque)
    _client: TaskClient | None = None

    @property
    def jobs(self) -> int:
        """How many jobs wait or are in flight."""
        return len(self.waiting) + len(self.window.jobs)

    def poll(self) -> list[tuple[ReadBackJob, Any | DumpIngestError]]:
        """Submit what fits, and return the jobs that have ended. Does not wait.

        Raises:
            ClusterError: nobody answers. Nothing is lost.
        """
        if not self.jobs:
            return []
        client = self.connect()
        if client is not self._client:
            self.waiting.extendleft(self.window.clear())  # lost with their client
            self._client = client
        results = self.window.ended(client)
        while self.waiting and self.window.has_room(self.waiting[0].nbytes):
            job = self.waiting.popleft()
            future = submit(
                client,
                tasks.run_read_back,
                tasks.pack(job),
                key=f"read-back-0{job.fingerprint[:15]}-{job.key.rank}-{job.key.step}-{time.time_ns()}",
                priority=_PRIORITY,
                resources=shares_of(self.resources),
            )
            self.window.add(future, job, job.nbytes)
        return results

    def drop(self, chooses: Callable[[ReadBackJob], bool] = lambda _: True) -> None:
        """Forget the jobs that a function chooses."""
        self.waiting = deque(job for job in self.waiting if not chooses(job))
        self.window.drop(chooses)


def batches(files: Sequence[SourceFile], max_nbytes: int, max_files: int) -> Iterator[tuple[SourceFile, ...]]:
    """Split files into tasks of about this size, and of one file at least."""
    start = nbytes = 0
    for stop, file in enumerate(files):
        if stop > start and (nbytes + file.size > max_nbytes or stop - start == max_files):
            yield tuple(files[start:stop])
            start, nbytes = stop, 0
        nbytes += file.size
    yield tuple(files[start:])
