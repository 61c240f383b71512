"""Tasks in flight on workers: a bounded number, and a bounded number of bytes."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ingest.dispatch.clients import TaskClient, TaskFuture
from ingest.dispatch.futures import error_of_cluster, result_of
from ingest.dispatch.task_monitor import TaskMonitor
from workers.errors import DumpIngestError
from workers.store.prefetch import in_order

if TYPE_CHECKING:
    from distributed import Client, Future

#: What to do if the cluster has failed a command that does not wait for it.
AGAIN_HINT = "Run the same command again, or without --scheduler."
Job = TypeVar("Job")
Result = TypeVar("Result")


def run_in_order(
    client: Client, function: Callable[[Job], Result], jobs: Iterable[Job], *, ahead: int
) -> Generator[Result, None, None]:
    """Run a task for each job, and yield their results in the order of the jobs, or raise what a task raised.

    Dask runs a task up to twice more if it fails. Whatever ends the iteration, remaining tasks are cancelled.

    Args:
        client: of the cluster.
        function: what a task runs.
        jobs: its arguments.
        ahead: how many further tasks are in flight, or done, while the caller holds a result.

    Raises:
        ClusterError: the scheduler was lost, or every worker that took a task died.
    """

    def submit(job: Job) -> Future[Result]:
        return client.submit(function, job, pure=False, retries=2)

    try:
        yield from in_order(jobs, submit, ahead=ahead)
    except Exception as exc:
        error = error_of_cluster(getattr(function, "__name__", "task"), exc)
        if error is None:
            raise
        error.hint = error.hint or AGAIN_HINT
        raise error from exc


@dataclass(eq=False, slots=True)
class _Inflight(Generic[Job]):
    """A task in flight."""

    job: Job
    name: str
    nbytes: int
    future: TaskFuture
    submitted_at: float


@dataclass(slots=True)
class TaskWindow(Generic[Job]):
    """Tasks in flight, each with the job that it does, for those who must not wait for results.

    A task that is larger than the window goes alone. Single-threaded: all methods are called by one thread.
    """

    max_tasks: int
    max_nbytes: float = math.inf
    """What the sizes of the tasks may sum up to, in bytes."""
    describe: Callable[[Job], str] = str
    """Returns what a job works at, for people."""
    monitor: TaskMonitor = field(default_factory=TaskMonitor)
    """Looks after tasks that take long."""
    _inflight: dict[TaskFuture, _Inflight[Job]] = field(default_factory=dict)
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
        task = _Inflight(job, self.describe(job), nbytes, future, self.monitor.clock())
        self._inflight[future] = task
        self.monitor.add(task)
        self._nbytes += nbytes
        # Called in a thread of the client: only the queue is touched.
        future.add_done_callback(self._ended.put)

    def ended(self, client: TaskClient | None) -> list[tuple[Job, Any | DumpIngestError]]:
        """Return the jobs that have ended since the last call, with result or error, and forget them.

        A task that the scheduler has lost, or that keeps its worker busy for too long, ends with an error.

        Args:
            client: to which the tasks were submitted; None if none was yet.
        """
        results: list[tuple[Job, Any | DumpIngestError]] = []
        while not self._ended.empty():
            future = self._ended.get()
            if future in self._inflight:  # else its job was dropped
                task = self._remove(future)
                results.append((task.job, result_of(future, task.name)))
        if client is not None and self._inflight:
            for task, error in self.monitor.check(client, self._inflight.values()):
                self._remove(task.future)
                task.future.cancel()
                results.append((task.job, error))
        return results

    def drop(self, chooses: Callable[[Job], bool]) -> None:
        """Cancel and forget the tasks of the jobs that a function chooses."""
        for future in [future for future, task in self._inflight.items() if chooses(task.job)]:
            self._remove(future)
            future.cancel()

    def clear(self) -> list[Job]:
        """Forget all tasks, which were lost with their client, and return their jobs."""
        return [self._remove(future).job for future in list(self._inflight)]

    def _remove(self, future: TaskFuture) -> _Inflight[Job]:
        task = self._inflight.pop(future)
        self._nbytes -= task.nbytes
        self.monitor.drop(task)
        return task
