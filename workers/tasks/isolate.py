"""Converts a job in a subprocess, to find the file that kills the process that reads it.

A file can kill the process that reads it: it needs more memory than the machine has, or a library crashes. A
dead worker cannot report which file it was. So a job of which a worker has died is converted in a subprocess,
which writes down each row before it reads it. If the subprocess dies, the file of the last row is suspect.

A suspect is not yet proved to be poison: the subprocess may have been killed because of a neighbour, or the
machine may kill every process. It is proved if the file is read alone `DEATHS_ALONE` times, the subprocess
dies each time, and each time a control subprocess, which reads nothing but does the same arithmetic in as
much memory, survives.

The two processes exchange three files in memory: the order, the answer, and the number of the row.
"""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from workers.arrays.statistics import RunningStatistics
from workers.errors import ClusterError, PoisonedFile, WorkerDied, as_error
from workers.host.paths import environment
from workers.host.resources import data_left, data_nbytes, machine_nbytes, status_nbytes
from workers.model import MIB
from workers.processes.worker import how_ended
from workers.store.packed.chunks import BIT_SHUFFLE, compressor
from workers.tasks.convert import PIECE_BYTES, convert_here, dry_run
from workers.tasks.entry_statistics import MAX_CONVERTED_BYTES
from workers.tasks.model import Receipt, ShardJob

#: How often a file must kill a process that reads nothing else before it counts as poison.
DEATHS_ALONE = 2
#: Memory that a subprocess may always use in addition to what it has when it begins to read.
_LEAST_MEMORY_NBYTES = 256 * MIB
_ROW_NBYTES = 8
#: Exit code of a subprocess that ran out of memory, and could still report it.
_OUT_OF_MEMORY = 99
#: Stands for the exit code of a subprocess that was killed because it read one file for too long.
_HUNG = 1000
#: How long a subprocess may be at one row, in seconds, besides a second for each MiB; and how often that is
#: looked at.
ROW_TIMEOUT_S = 120.0
_WATCH_CHILD_S = 1.0
_WATCH_PARENT_S = 1.0
#: How long a subprocess may take to end that was killed, in seconds.
_KILLED_S = 5.0

_PROGRAM = "import sys; from workers.tasks.isolate import serve; serve(*map(int, sys.argv[1:]))"
_WRITE, _READ, _CONTROL = "write", "read", "control"


@dataclass(frozen=True, slots=True)
class _Order:
    job: ShardJob
    what: str
    """`write`: convert the job. `read`: read and decode its files, but write nothing. `control`: neither."""
    memory_nbytes: int
    """Memory that it may use in addition to what it has when it begins to read."""
    need_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class _Death:
    row: int
    """The row that it began last; -1 for none."""
    how: str
    """Name of the signal, or exit code."""


#: The outcome of an order: a receipt, an error, nothing, or a death.
_Outcome: TypeAlias = Receipt | Exception | _Death | None


def convert_in_subprocess(job: ShardJob) -> Receipt:
    """Convert a job as `convert_here` does, but in a subprocess.

    At most 1 + 2 * `DEATHS_ALONE` subprocesses, one after the other. Each may use the memory that the worker
    has left of its limit; a subprocess that exceeds it dies.

    Raises:
        PoisonedFile: one file kills every process that reads it.
        WorkerDied: the subprocess died, and no file is proved to be the cause.
        ClusterError: subprocesses die here before they read anything.
        DumpIngestError: as raised by `convert_here`.
    """
    memory_nbytes = _memory_left()
    outcome = _carry_out(_Order(job, _WRITE, memory_nbytes))
    if isinstance(outcome, Receipt):
        return outcome
    if isinstance(outcome, Exception):
        raise outcome
    if outcome is None or outcome.row < 0:
        how = outcome.how if outcome else "without an answer"
        raise ClusterError(f"{job.key}: a subprocess ended before it read anything ({how})")
    path = job.entries[outcome.row].source.path
    died = f"{job.key}: a process that read {path} died ({outcome.how})"
    _prove_poison(_only(job, path), memory_nbytes, died)
    raise PoisonedFile(f"{died}, and so did {DEATHS_ALONE} that read nothing else", path=path)


def _prove_poison(job: ShardJob, memory_nbytes: int, died: str) -> None:
    """Return if a job of a single file kills each process that reads it, and controls survive.

    Raises:
        WorkerDied: it does not, or they do not; `died` begins the message.
    """
    largest = max(entry.nbytes for entry in job.entries.values())
    # About how much memory converting it should take: see `workers.tasks.convert`.
    needed = 2 * (largest if largest <= MAX_CONVERTED_BYTES else PIECE_BYTES)
    for _ in range(DEATHS_ALONE):
        again = _carry_out(_Order(job, _READ, memory_nbytes))
        if not isinstance(again, _Death) or again.row < 0:
            raise WorkerDied(f"{died}, and another one did not")
        control = _carry_out(_Order(job, _CONTROL, memory_nbytes, need_nbytes=needed))
        if control is not None:
            raise WorkerDied(f"{died}, and so did one that read nothing: suspect this worker, or its memory")


def _only(job: ShardJob, path: str) -> ShardJob:
    """Return the part of a job that reads one file, and packs nothing into the pool: a dry run has none."""
    entries = {row: entry for row, entry in job.entries.items() if entry.source.path == path}
    segments = tuple(
        replace(segment, rows=rows, pooled=False)
        for segment in job.segments
        if (rows := tuple(row for row in segment.rows if row in entries))
    )
    nbytes = sum(entry.read_nbytes for entry in entries.values())
    return replace(job, segments=segments, entries=entries, nbytes=nbytes)


def _memory_left() -> int:
    left = data_left()
    if left is None:  # the limit of the Dask worker that runs this, or else the memory of the machine
        from distributed.worker import get_worker  # deferred: 0.4 s, only on a Dask worker

        try:
            limit: int | None = get_worker().memory_manager.memory_limit
        except ValueError:  # not called by a worker
            limit = None
        left = (limit or machine_nbytes()) - status_nbytes("VmRSS")
    return max(left, _LEAST_MEMORY_NBYTES)


def _carry_out(order: _Order) -> _Outcome:
    with ExitStack() as files:
        given, report, progress = (
            files.enter_context(os.fdopen(os.memfd_create(name), "w+b"))
            for name in ("job", "report", "progress")
        )
        pickle.dump(order, given, protocol=5)
        given.flush()
        given.seek(0)
        fds = (given.fileno(), report.fileno(), progress.fileno())
        process = subprocess.Popen(
            # Without the working directory, which may be anything.
            [sys.executable, "-P", "-X", "faulthandler", "-c", _PROGRAM, *map(str, fds)],
            env={**environment(), "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            code = _wait(process, fds[2], order.job)
        finally:
            _end(process)
        if code == 0:
            # Written by this module. A file that could take over the subprocess could take over a worker as
            # well.
            report.seek(0)
            outcome: _Outcome = pickle.load(report)  # noqa: S301
            return outcome
        row = os.pread(fds[2], _ROW_NBYTES, 0)
        return _Death(int.from_bytes(row, "little") if row else -1, _how(code))


def _wait(process: subprocess.Popen[bytes], progress: int, job: ShardJob) -> int:
    """Wait for the end of a subprocess; return its exit code, or `_HUNG` if it stays too long at one row."""
    row, since = b"", time.monotonic()
    while True:
        try:
            return process.wait(_WATCH_CHILD_S)
        except subprocess.TimeoutExpired:
            pass
        now, at = os.pread(progress, _ROW_NBYTES, 0), time.monotonic()
        if now != row:
            row, since = now, at
        entry = job.entries.get(int.from_bytes(row, "little")) if row else None
        if at - since > ROW_TIMEOUT_S + (entry.nbytes if entry is not None else 0) / MIB:
            return _HUNG


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a subprocess. A separate thread waits for it if the kernel does not end it at once."""
    process.kill()
    try:
        process.wait(_KILLED_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, daemon=True).start()


def _how(code: int) -> str:
    if code == _OUT_OF_MEMORY:
        return "out of memory"
    return "it hung" if code == _HUNG else how_ended(code)


def serve(given: int, report: int, progress: int) -> None:
    """Carry out the order in one open file, write the answer to another, and end the process."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(given, "rb") as file:
        order: _Order = pickle.load(file)  # noqa: S301  (written by `_carry_out`)
    # Loads everything that reading needs before the first file, so that no file is blamed if it dies here.
    _exercise(0)
    limit = data_nbytes() + order.memory_nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def begin(row: int) -> None:
        os.pwrite(progress, row.to_bytes(_ROW_NBYTES, "little"), 0)

    run: dict[str, Callable[[], Any]] = {
        _WRITE: lambda: convert_here(order.job, begin),
        _READ: lambda: dry_run(order.job, begin),
        _CONTROL: lambda: _exercise(order.need_nbytes),
    }
    outcome: _Outcome
    try:
        outcome = run[order.what]()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as exc:  # noqa: BLE001  (whatever it is, the parent process raises it)
        outcome = as_error("in a subprocess", exc)
    with os.fdopen(report, "wb") as answer:
        pickle.dump(outcome, answer, protocol=5)
    # At once: remaining threads, of a client of the store, have nothing left to do.
    os._exit(0)


def _exercise(nbytes: int) -> None:
    """Run the conversion path once on synthetic numbers, using `nbytes` of memory."""
    values = np.linspace(-1, 1, MIB // 4, dtype=np.float32)
    running = RunningStatistics()
    running.update(values)
    running.result()
    compressor("lz4", 5, BIT_SHUFFLE, 4).encode(values)
    np.ones(nbytes, np.uint8)


def _end_with_parent(parent: int) -> None:
    """End this process when the worker has ended, because then nobody waits for the answer."""
    while os.getppid() == parent:
        time.sleep(_WATCH_PARENT_S)
    os._exit(1)
