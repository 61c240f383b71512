"""Worker processes for a command that takes one dump: no scheduler, no ports, and no import of Dask."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Self

from ingest.dispatch.process_client import ProcessClient
from workers.errors import ClusterError
from workers.host.cpu import CpuLimits, throttle
from workers.host.memory import machine_nbytes
from workers.model import MIB
from workers.processes.prepare import prepare
from workers.processes.start import WorkerProcess, start_process

_MAX_WORKERS = 8
#: What a worker may use on the smallest machine: about four times what it needs.
_LEAST_MEMORY_NBYTES = 1024 * MIB
_HINT = "What they wrote to standard error, or the log of the kernel, says why."


def count_of_workers(chosen: int | None) -> int:
    """Return how many worker processes to start: as chosen, or one per processor of this process."""
    return chosen or min(len(os.sched_getaffinity(0)), _MAX_WORKERS)


class ProcessWorkers:
    """Worker processes that are started at once, while this process may have a single thread.

    A context manager; they end with it.
    """

    def __init__(self, workers: int | None = None, limits: CpuLimits | None = None) -> None:
        """Start the processes.

        Args:
            workers: how many. None: one for each processor that this process may use, at most eight.
            limits: what they may take of the processors, together with this process.

        Raises:
            ClusterError: the system does not start them.
        """
        limits = limits or CpuLimits()
        number = count_of_workers(workers)
        part = limits.part(number + 1)
        throttle.limit(part)
        memory_nbytes = max(machine_nbytes() // number, _LEAST_MEMORY_NBYTES)
        self._start = partial(start_process, memory_nbytes, partial(prepare, limits, part))
        self._processes: list[WorkerProcess] = []
        self._client: ProcessClient | None = None
        self._number = number
        self._start_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> ProcessClient:
        """Return the client of the processes.

        Raises:
            ClusterError: processes have died, and new ones end before they are ready.
        """
        if self._client is None:
            self._client = ProcessClient(self._processes, self._start)
        if self._client.status != "running":
            raise ClusterError("workers ended before they were ready", hint=_HINT)
        return self._client

    def close(self) -> None:
        """End the processes."""
        throttle.limit(1.0)
        if self._client is not None:
            self._client.close()
            self._client = None
        else:
            self._end_all()
        self._processes = []

    def _start_all(self) -> None:
        self._processes = []
        try:
            for _ in range(self._number):
                self._processes.append(self._start())
        except OSError as exc:
            self._end_all()
            raise ClusterError(f"cannot start workers: {exc}") from exc

    def _end_all(self) -> None:
        for process in self._processes:
            with suppress(OSError):
                process.kill()
        for process in self._processes:
            process.wait()
