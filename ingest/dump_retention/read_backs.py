"""Read-backs as tasks: they yield to all conversions, and only a few run at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from ingest.dispatch.clients import TaskClient, submit
from ingest.dispatch.futures import shares_of
from ingest.dispatch.task_monitor import TaskMonitor
from ingest.dispatch.window import TaskWindow
from workers.errors import DumpIngestError
from workers.model import MIB, SourceFile, StepKey
from workers.store.model import StoreAddress
from workers.tasks import run as tasks
from workers.tasks.read_back import ReadBack, ReadBackJob

#: Source bytes of one task, about: what a conversion may have to wait for, and one file at least.
JOB_NBYTES = 256 * MIB
#: Files of one task: their names travel with it.
JOB_FILES = 10_000
#: Tasks in flight at once.
_AT_ONCE = 8
#: Dask runs tasks of a higher priority first; conversions have 0.
_PRIORITY = -10


def jobs_of(
    key: StepKey, fingerprint: str, root: str, store: StoreAddress, files: tuple[SourceFile, ...]
) -> Iterator[ReadBackJob]:
    """Yield the jobs that read back these files of a committed step."""
    start = nbytes = 0
    number = 0
    for stop, file in enumerate(files):
        if stop > start and (nbytes + file.size > JOB_NBYTES or stop - start == JOB_FILES):
            yield ReadBackJob(key, number, fingerprint, root, store, files[start:stop])
            start, nbytes, number = stop, 0, number + 1
        nbytes += file.size
    yield ReadBackJob(key, number, fingerprint, root, store, files[start:])


class ReadBacks:
    """Runs jobs on a cluster. Single-threaded: all methods are called by one thread.

    In flight are at most eight tasks, and `inflight_nbytes` of source bytes; a single larger task goes alone.
    """

    def __init__(
        self,
        client: Callable[[], TaskClient],
        inflight_nbytes: int,
        resources: Mapping[str, float] | None = None,
        monitor: TaskMonitor | None = None,
    ) -> None:
        """Remember where to run; nothing is submitted yet.

        Args:
            client: returns a connected client, a new one if the last was lost, or raises ClusterError.
            inflight_nbytes: source bytes of the tasks in flight.
            resources: what a worker must offer to be given a task, as Dask counts resources.
            monitor: looks after tasks that take long.
        """
        self._connect = client
        self._resources = shares_of(resources or {})
        self._waiting: deque[ReadBackJob] = deque()
        self._window: TaskWindow[ReadBackJob] = TaskWindow(
            _AT_ONCE, inflight_nbytes, lambda job: str(job.key), monitor or TaskMonitor()
        )
        self._client: TaskClient | None = None

    @property
    def has_room(self) -> bool:
        """Whether everything that was offered has been submitted."""
        return not self._waiting

    def offer(self, job: ReadBackJob) -> None:
        """Take on a job; `poll` returns its result, once."""
        self._waiting.append(job)

    def poll(self) -> list[tuple[ReadBackJob, ReadBack | DumpIngestError]]:
        """Submit what fits, and return the jobs that have ended. Does not wait.

        Raises:
            ClusterError: the scheduler is missing. Everything stays as it is; call again later.
        """
        if not self._waiting and not self._window.jobs:
            return []
        client = self._connect()
        if client is not self._client:
            self._waiting.extendleft(self._window.clear())  # lost with their client
            self._client = client
        results = self._window.ended(client)
        while self._waiting and self._window.has_room(self._waiting[0].nbytes):
            self._submit(client, self._waiting.popleft())
        return results

    def drop(self, key: StepKey) -> None:
        """Forget the jobs of a step."""
        self._waiting = deque(job for job in self._waiting if job.key != key)
        self._window.drop(lambda job: job.key == key)

    def cancel(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._window.drop(lambda _: True)

    def _submit(self, client: TaskClient, job: ReadBackJob) -> None:
        place = f"{job.key.rank}-{job.key.step}-{job.number}-{time.time_ns()}"
        future = submit(
            client,
            tasks.run_read_back,
            tasks.pack_read_back(job),
            key=f"read-back-0{job.fingerprint[:15]}-{place}",
            priority=_PRIORITY,
            resources=self._resources,
        )
        self._window.add(future, job, job.nbytes)
