"""Read-backs as Dask tasks: they yield to all conversions, and only a few run at once."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingest.dispatch.futures import result_of, shares_of
from workers.errors import DumpIngestError
from workers.model import MIB, SourceFile, StepKey
from workers.store.model import StoreAddress
from workers.tasks import run as tasks
from workers.tasks.read_back import ReadBack, ReadBackJob

if TYPE_CHECKING:  # importing distributed takes 0.5 s
    from distributed import Client, Future

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


@dataclass(slots=True)
class ReadBacks:
    """Runs jobs on a cluster. Single-threaded: all methods are called by one thread.

    In flight are at most eight tasks, and `inflight_nbytes` of source bytes; a single larger task goes alone.
    """

    client: Callable[[], Client]
    """Returns a connected client, and another one if the last was lost. May raise ClusterError."""
    inflight_nbytes: int
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a worker must offer to be given a task, as Dask counts resources."""
    _waiting: deque[ReadBackJob] = field(default_factory=deque)
    _inflight: dict[str, tuple[Future[Any], ReadBackJob]] = field(default_factory=dict)
    """By key of the task."""
    _client: Client | None = None
    _finished: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    @property
    def has_room(self) -> bool:
        """Whether everything that was offered has been submitted."""
        return not self._waiting

    def offer(self, job: ReadBackJob) -> None:
        """Have a job done; `poll` will return what came of it, once."""
        self._waiting.append(job)

    def poll(self) -> list[tuple[ReadBackJob, ReadBack | DumpIngestError]]:
        """Submit what fits, and return what has come to its end. Does not wait.

        Raises:
            ClusterError: the scheduler does not answer. Everything stays as it is; call again later.
        """
        if not self._waiting and not self._inflight:
            return []
        client = self.client()
        if client is not self._client:
            self._waiting.extendleft(job for _, job in self._inflight.values())  # lost with their client
            self._inflight.clear()
            self._client = client
        results = []
        while not self._finished.empty():
            # A task without a job: its step was dropped, or its client was lost.
            future, job = self._inflight.pop(self._finished.get(), (None, None))
            if future is not None and job is not None:
                results.append((job, result_of(future, str(job.key))))
        while self._waiting and self._fits(self._waiting[0]):
            self._submit(client, self._waiting.popleft())
        return results

    def drop(self, key: StepKey) -> None:
        """Forget the jobs of a step."""
        self._waiting = deque(job for job in self._waiting if job.key != key)
        for name in [name for name, (_, job) in self._inflight.items() if job.key == key]:
            self._inflight.pop(name)[0].cancel()

    def cancel(self) -> None:
        """Forget everything."""
        for key in {job.key for job in (*self._waiting, *(job for _, job in self._inflight.values()))}:
            self.drop(key)

    def _fits(self, job: ReadBackJob) -> bool:
        nbytes = sum(other.nbytes for _, other in self._inflight.values())
        return not self._inflight or (
            len(self._inflight) < _AT_ONCE and nbytes + job.nbytes <= self.inflight_nbytes
        )

    def _submit(self, client: Client, job: ReadBackJob) -> None:
        place = f"{job.key.rank}-{job.key.step}-{job.number}-{time.time_ns()}"
        name = f"read-back-0{job.fingerprint[:15]}-{place}"
        future: Future[Any] = client.submit(
            tasks.run_read_back,
            tasks.pack_read_back(job),
            key=name,
            pure=False,
            priority=_PRIORITY,
            resources=shares_of(self.resources),
        )
        self._inflight[name] = future, job
        # Called in a thread of the client: only the queue is touched.
        future.add_done_callback(lambda _: self._finished.put(name))
