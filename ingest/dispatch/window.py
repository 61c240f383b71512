"""Tasks in flight on a Dask cluster: a bounded number, and a bounded number of bytes."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from workers.store.prefetch import in_order

if TYPE_CHECKING:
    from distributed import Client, Future

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
    """

    def submit(job: Job) -> Future[Result]:
        return client.submit(function, job, pure=False, retries=2)

    return in_order(jobs, submit, ahead=ahead)


@dataclass(slots=True)
class TaskWindow(Generic[Job]):
    """Tasks in flight, each with the job that it does, for those who must not wait for results.

    A task that is larger than the window goes alone. Single-threaded: all methods are called by one thread.
    """

    max_tasks: int
    max_nbytes: float = math.inf
    """What the sizes of the tasks may sum up to, in bytes."""
    _inflight: dict[Future[Any], tuple[Job, int]] = field(default_factory=dict)
    _nbytes: int = 0
    _ended: queue.SimpleQueue[Future[Any]] = field(default_factory=queue.SimpleQueue)

    @property
    def jobs(self) -> list[Job]:
        """The jobs in flight, in the order in which they were added."""
        return [job for job, _ in self._inflight.values()]

    def has_room(self, nbytes: int) -> bool:
        """Return whether a task of this size may be submitted now."""
        if not self._inflight:
            return True
        return len(self._inflight) < self.max_tasks and self._nbytes + nbytes <= self.max_nbytes

    def add(self, future: Future[Any], job: Job, nbytes: int) -> None:
        """Count a task that was just submitted."""
        self._inflight[future] = job, nbytes
        self._nbytes += nbytes
        # Called in a thread of the client: only the queue is touched.
        future.add_done_callback(self._ended.put)

    def ended(self) -> list[tuple[Job, Future[Any]]]:
        """Return the tasks that have ended since the last call, however they did, and forget them."""
        tasks = []
        while not self._ended.empty():
            future = self._ended.get()
            if future in self._inflight:  # else its job was dropped
                tasks.append((self._remove(future), future))
        return tasks

    def drop(self, chooses: Callable[[Job], bool]) -> None:
        """Cancel and forget the tasks of the jobs that a function chooses."""
        for future in [future for future, (job, _) in self._inflight.items() if chooses(job)]:
            self._remove(future)
            future.cancel()

    def clear(self) -> list[Job]:
        """Forget all tasks, which were lost with their client, and return their jobs."""
        jobs = self.jobs
        self._inflight.clear()
        self._nbytes = 0
        return jobs

    def _remove(self, future: Future[Any]) -> Job:
        job, nbytes = self._inflight.pop(future)
        self._nbytes -= nbytes
        return job
