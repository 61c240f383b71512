"""Looks after tasks that take long: whether the scheduler still knows them, and whether they come to an end.

A file that blocks its reader, in a file system that has gone, keeps a worker busy for ever, with a heartbeat
that is fine. A scheduler may lose a task without a word. Both are noticed here, by a monotonic clock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingest.dispatch.parts import InflightTask
from workers.errors import ClusterError, WorkerDied
from workers.events import Event
from workers.model import MIB

if TYPE_CHECKING:
    from distributed import Client

#: Only older tasks are asked about, how often, and how long to wait for the scheduler, in seconds.
_YOUNG_S, _PAUSE_S, _ANSWER_S = 30.0, 10.0, 10.0
#: What a task may take in addition for each byte that it reads.
_S_PER_BYTE = 1 / MIB
#: How often in a row the scheduler must not know a task: it may have ended a moment before.
_MISSED = 2
_RESTART_S = 30.0


@dataclass(frozen=True, slots=True)
class WorkerReplaced(Event):
    """A worker was replaced, because a task on it did not come to an end."""

    worker: str
    task: str
    seconds: float


@dataclass(slots=True)
class _Seen:
    """What was heard of one task."""

    worker: str = ""
    since: float = 0.0
    missed: int = 0


@dataclass(slots=True)
class Patrol:
    """Asks a scheduler about tasks, in a thread: it may take long to answer. Otherwise single-threaded."""

    timeout_s: float = 600.0
    """How long a task may run on one worker, besides a second for each MiB that it reads."""
    clock: Callable[[], float] = time.monotonic
    young_s: float = _YOUNG_S
    pause_s: float = _PAUSE_S
    replaced: list[WorkerReplaced] = field(default_factory=list)
    """Workers that were replaced and not reported yet."""
    _seen: dict[InflightTask, _Seen] = field(default_factory=dict)
    _asked_at: float = 0.0
    _answers: queue.SimpleQueue[tuple[dict[Any, str | None], dict[Any, str]]] = field(
        default_factory=queue.SimpleQueue
    )
    _thread: threading.Thread | None = None

    def look(
        self, client: Client, inflight: Collection[InflightTask]
    ) -> list[tuple[InflightTask, ClusterError]]:
        """Return the tasks that are given up, and why; ask about the others if it is time to.

        The worker of a task that runs for too long is being replaced when this returns.
        """
        given_up = []
        while not self._answers.empty():
            states, workers = self._answers.get()
            for task in inflight:
                if task.future.key in states:
                    error = self._judge(client, task, states[task.future.key], workers)
                    if error is not None:
                        given_up.append((task, error))
        now = self.clock()
        is_asking = self._thread is not None and self._thread.is_alive()
        if now - self._asked_at >= self.pause_s and not is_asking:
            self._asked_at = now
            self._seen = {task: seen for task, seen in self._seen.items() if task in inflight}
            old = [task for task in inflight if now - task.submitted_at >= self.young_s]
            if old:
                keys = [task.future.key for task in old]
                self._thread = threading.Thread(
                    target=self._ask, args=(client, keys), name="dump-ingest-patrol", daemon=True
                )
                self._thread.start()
        return given_up

    def take_replaced(self) -> list[WorkerReplaced]:
        """Return the workers that were replaced since this was asked last."""
        replaced, self.replaced = self.replaced, []
        return replaced

    def _judge(
        self, client: Client, task: InflightTask, state: str | None, workers: dict[Any, str]
    ) -> ClusterError | None:
        seen = self._seen.setdefault(task, _Seen())
        now, key = self.clock(), task.parts[0].step.plan.key
        if state is None:
            seen.missed += 1
            if seen.missed < _MISSED or task.future.status != "pending":
                return None
            return ClusterError(f"{key}: the scheduler does not know the task any more")
        seen.missed = 0
        worker = workers.get(task.future.key, "")
        if worker != seen.worker:
            seen.worker, seen.since = worker, now
        limit_s = self.timeout_s + task.nbytes * _S_PER_BYTE
        if not worker or now - seen.since < limit_s:
            return None
        self._replace(client, worker)
        self.replaced.append(WorkerReplaced(worker, str(key), now - seen.since))
        return WorkerDied(
            f"{key}: a task did not come to an end on {worker} for {now - seen.since:.0f} s; "
            "the worker is replaced"
        )

    def _ask(self, client: Client, keys: list[Any]) -> None:
        try:
            scheduler: Any = client.scheduler
            states = client.sync(scheduler.get_task_status, keys=keys, callback_timeout=_ANSWER_S)
            processing = client.sync(scheduler.processing, workers=None, callback_timeout=_ANSWER_S)
        except Exception:  # noqa: BLE001  (of Dask or the network: the client notices a scheduler that has gone)
            return
        self._answers.put((states, {key: worker for worker, tasks in processing.items() for key in tasks}))

    def _replace(self, client: Client, worker: str) -> None:
        def restart() -> None:
            try:
                client.restart_workers([worker], timeout=_RESTART_S, raise_for_error=False)
            except Exception:  # noqa: BLE001  (it has gone, or has nobody to start it again: Dask removes it)
                return

        threading.Thread(target=restart, name="dump-ingest-replace", daemon=True).start()
