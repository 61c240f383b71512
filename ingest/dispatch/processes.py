"""Worker processes of this command, and the client that hands them tasks: no scheduler, no ports, no Dask.

The client is the part of `distributed.Client` that a command needs. Each process has a thread here that hands
it one task after the other. A process that dies fails its task and is replaced.
"""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from workers.errors import ClusterError
from workers.host.resources import CpuLimits, machine_nbytes, throttle
from workers.model import MIB
from workers.processes.worker import ProcessDied, WorkerProcess, prepare, start_process

#: How often in a row a new process may end before it is ready: then all is given up.
_MAX_BAD_STARTS = 3
#: The priority of the end: before any task.
_END_PRIORITY = -(10**9)


class ProcessFuture(Future[Any]):
    """A task, as seen by the caller that submitted it.

    To cancel a task is to forget it: if it runs, its process finishes it, and nobody hears of it.

    Args:
        key: its name.
        message: what is sent to the process that runs it.
        retries: how often it is run again if it fails.
    """

    def __init__(self, key: str, message: bytes, retries: int = 0) -> None:
        super().__init__()
        self.key = key
        self.message = message
        self.retries = retries

    @property
    def status(self) -> str:
        """How far it is, in the words of Dask."""
        if not self.done():
            return "pending"
        return "cancelled" if self.cancelled() else "error" if self.exception() else "finished"


@dataclass(eq=False, slots=True)
class _Slot:
    name: str
    process: WorkerProcess
    at_work: ProcessFuture | None = None
    thread: threading.Thread | None = None


class ProcessClient:
    """Hands tasks to worker processes; ends them when it is closed.

    Args:
        processes: the workers.
        start: starts a process in place of one that has died.
    """

    def __init__(self, processes: Sequence[WorkerProcess], start: Callable[[], WorkerProcess]) -> None:
        self.status = "running"
        self._start = start
        self._numbers: Iterator[int] = itertools.count()
        self._queue: queue.PriorityQueue[tuple[int, int, ProcessFuture | None]] = queue.PriorityQueue()
        """Negative priority, number, task: of equal priority, the order of submission counts. None ends the
        thread that takes it."""
        self._lock = threading.Lock()
        self._futures: dict[str, ProcessFuture] = {}
        self._slots = [_Slot(f"worker {number}", process) for number, process in enumerate(processes)]
        for slot in self._slots:
            slot.thread = threading.Thread(
                target=self._serve, args=(slot,), name=f"dump-ingest-{slot.name}", daemon=True
            )
            slot.thread.start()

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        key: str,
        pure: bool = False,
        priority: int = 0,
        resources: object = None,
        retries: int = 0,
    ) -> ProcessFuture:
        """Have a process call a function; it is imported there by its name.

        Args:
            function: of a module.
            arguments: what to call it with.
            key: the name of the task.
            pure: must be False, as in each call of `distributed.Client.submit` here: nothing is remembered.
            priority: tasks of a higher one run first.
            resources: what a worker must offer. All of these do: they are on this host.
            retries: how often to run the task again, after all others, if it fails.
        """
        del pure, resources
        future = ProcessFuture(key, pickle.dumps((function, arguments), protocol=5), retries)
        with self._lock:
            self._futures[key] = future
        future.add_done_callback(self._forget)
        self._queue.put((-priority, next(self._numbers), future))
        if self.status != "running":
            future.cancel()
        return future

    def nthreads(self) -> dict[str, int]:
        """Return how many tasks each worker runs at once."""
        return {slot.name: 1 for slot in self._slots}

    def close(self) -> None:
        """End all processes at once, even in the middle of tasks; tasks that have not ended are cancelled."""
        self._give_up()
        for slot in self._slots:
            slot.process.wait()

    def states(self, keys: Sequence[str]) -> dict[str, str | None]:
        """Return the state of each task; None for one that is not known (any more)."""
        with self._lock:
            return {key: "processing" if key in self._futures else None for key in keys}

    def at_work(self) -> dict[str, str]:
        """Return the task that each busy worker is running."""
        return {slot.name: future.key for slot in self._slots if (future := slot.at_work) is not None}

    def replace(self, worker: str) -> None:
        """Kill a worker, even one that hangs; a new one takes its place."""
        for slot in self._slots:
            if slot.name == worker:
                slot.process.kill()

    def _forget(self, future: Future[Any]) -> None:
        assert isinstance(future, ProcessFuture)  # noqa: S101 (for mypy)
        future.message = b""
        with self._lock:
            self._futures.pop(future.key, None)

    def _serve(self, slot: _Slot) -> None:
        try:
            slot.process.channel.receive()  # it is ready
        except EOFError:
            if self.status != "running" or not self._restart(slot):
                return
        while (future := self._queue.get()[2]) is not None:
            if future.done():
                continue
            slot.at_work = future
            try:
                slot.process.channel.send(future.message)
                has_succeeded, value = pickle.loads(slot.process.channel.receive())  # noqa: S301  (from a child)
                died = False
            except EOFError:
                has_succeeded, value, died = False, ProcessDied(slot.process.wait()), True
            slot.at_work = None
            if not has_succeeded and future.retries and self.status == "running":
                future.retries -= 1
                self._queue.put((0, next(self._numbers), future))
            else:
                with suppress(InvalidStateError):  # it was cancelled meanwhile
                    future.set_result(value) if has_succeeded else future.set_exception(value)
            if died and (self.status != "running" or not self._restart(slot)):
                return

    def _restart(self, slot: _Slot) -> bool:
        """Put another process into a slot; give everything up if none becomes ready."""
        for _ in range(_MAX_BAD_STARTS):
            slot.process.kill()
            try:
                slot.process = self._start()
                slot.process.channel.receive()
            except (EOFError, OSError):
                continue
            if self.status == "running":
                return True
            break
        slot.process.kill()
        self._give_up()
        return False

    def _give_up(self) -> None:
        self.status = "closed"
        for slot in self._slots:
            slot.process.kill()
            self._queue.put((_END_PRIORITY, next(self._numbers), None))
        with self._lock:
            futures = list(self._futures.values())
        for future in futures:
            future.cancel()


_MAX_WORKERS = 8
#: What a worker may use on the smallest machine: about four times what it needs.
_LEAST_MEMORY_NBYTES = 1024 * MIB
_HINT = "What they wrote to standard error, or the log of the kernel, says why."


def count_of_workers(chosen: int | None) -> int:
    """Return how many worker processes to start: as chosen, or one per processor of this process."""
    return chosen or min(len(os.sched_getaffinity(0)), _MAX_WORKERS)


class ProcessWorkers(AbstractContextManager["ProcessWorkers"]):
    """Worker processes that are started at once, while this process may have a single thread; or when needed.

    A context manager; they end with it.

    Args:
        workers: how many. None: one for each processor that this process may use, at most eight.
        limits: what they may take of the processors, together with this process.
        when_needed: whether `connect` starts them.

    Raises:
        ClusterError: the system does not start them.
    """

    def __init__(
        self, workers: int | None = None, limits: CpuLimits | None = None, *, when_needed: bool = False
    ) -> None:
        limits = limits or CpuLimits()
        self._number = count_of_workers(workers)
        part = limits.part(self._number + 1)
        throttle.limit(part)
        memory_nbytes = max(machine_nbytes() // self._number, _LEAST_MEMORY_NBYTES)
        self._start = partial(start_process, memory_nbytes, partial(prepare, limits, part))
        self._processes: list[WorkerProcess] = []
        self._client: ProcessClient | None = None
        if not when_needed:
            self._start_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> ProcessClient:
        """Return the client of the processes; start them if there are none.

        Raises:
            ClusterError: the system does not start them; or they have died, and new ones end before they are
                ready. The next call starts others.
        """
        if self._client is None:
            if not self._processes:
                self._start_all()
            self._client = ProcessClient(self._processes, self._start)
        if self._client.status != "running":
            self.rest()
            raise ClusterError("workers ended before they were ready", hint=_HINT)
        return self._client

    def rest(self) -> None:
        """End the processes until `connect` is called again."""
        if self._client is not None:
            self._client.close()
            self._client = None
        else:
            for process in self._processes:
                with suppress(OSError):
                    process.kill()
            for process in self._processes:
                process.wait()
        self._processes = []

    def close(self) -> None:
        """End the processes."""
        throttle.limit(1.0)
        self.rest()

    def _start_all(self) -> None:
        try:
            for _ in range(self._number):
                self._processes.append(self._start())
        except OSError as exc:
            self.rest()
            raise ClusterError(f"cannot start workers: {exc}") from exc
