"""A job in a process of its own, so that what kills that process is known, and kills no worker.

A file can kill the process that reads it: it takes more memory than there is, or a library crashes. A worker
that died can say nothing. So a job of which a worker has died is converted here: the process notes each row
before it reads it, and when it dies, the row that it was at is suspect. A suspect is no culprit: the process
may have been killed because of a neighbour, or the machine may kill whatever runs. It is one when it is read
by itself, `DEATHS_ALONE` times, each time the process dies of it, and each time another process that reads
nothing, but does the same arithmetic in as much memory, does not.

Files pass between the two processes: the order, the answer, and the number of the row.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from workers.arrays.statistics import RunningStatistics
from workers.errors import ClusterError, PoisonedFile, WorkerDied, as_error
from workers.model import MIB
from workers.tasks.convert import MAX_CONVERTED_BYTES, PIECE_BYTES, convert_here, dry_run
from workers.tasks.model import Receipt, ShardJob

#: How often a file must kill a process that reads nothing else before it is said to be the cause.
DEATHS_ALONE = 2
#: What a process may take beside what it has when it begins to read, where the worker has less left.
_LEAST_MEMORY_NBYTES = 256 * MIB
_ROW_NBYTES = 8
#: The process has run out of memory, and could still say so.
_OUT_OF_MEMORY = 99
_WATCH_PARENT_S = 1.0

_PROGRAM = "import sys; from workers.tasks.isolate import serve; serve(*map(int, sys.argv[1:]))"
_WRITE, _READ, _CONTROL = "write", "read", "control"


@dataclass(frozen=True, slots=True)
class _Order:
    """What the process is to do."""

    job: ShardJob
    what: str
    """Convert the job; only read it, and write nothing; or neither."""
    memory_nbytes: int
    need_nbytes: int = 0
    """How much memory to use where nothing is read."""


@dataclass(frozen=True, slots=True)
class _Death:
    row: int
    """Of the job, the one that was begun last; -1 for none."""
    how: str


#: What came of an order: a receipt, an error, nothing, or a death.
_End: TypeAlias = Receipt | Exception | _Death | None


def convert_apart(job: ShardJob) -> Receipt:
    """Do what `convert_here` does, in a process of its own.

    At most 1 + 2 * `DEATHS_ALONE` processes, one after the other. Memory: what the worker has left of its
    limit, which is then the limit of the process; a process that passes it has died.

    Raises:
        PoisonedFile: one file kills every process that reads it.
        WorkerDied: the process died, and no file is shown to be the cause.
        ClusterError: processes die here, whatever they read.
        DumpIngestError: as `convert_here` does.
    """
    memory_nbytes = _memory_left()
    first = _carry_out(_Order(job, _WRITE, memory_nbytes))
    if isinstance(first, Receipt):
        return first
    if isinstance(first, Exception):
        raise first
    if first is None or first.row < 0:
        how = first.how if first else "it said nothing"
        raise ClusterError(f"{job.key}: a process of its own ended before it read anything ({how})")
    path = job.entries[first.row].source.path
    alone = _only(job, path)
    largest = max(entry.nbytes for entry in alone.entries.values())
    died = f"{job.key}: a process that read {path} died ({first.how})"
    for _ in range(DEATHS_ALONE):
        again = _carry_out(_Order(alone, _READ, memory_nbytes))
        if not isinstance(again, _Death) or again.row < 0:
            raise WorkerDied(f"{died}, and another one did not")
        control = _carry_out(_Order(alone, _CONTROL, memory_nbytes, need_nbytes=_needed(largest)))
        if control is not None:
            raise WorkerDied(f"{died}, and so did one that read nothing: it is this worker, or its memory")
    message = f"{died}, and so did {DEATHS_ALONE} that read nothing else"
    raise PoisonedFile(message, path=path)


def _only(job: ShardJob, path: str) -> ShardJob:
    """Return the part of a job that reads one file."""
    entries = {row: entry for row, entry in job.entries.items() if entry.source.path == path}
    segments = tuple(
        replace(segment, rows=rows)
        for segment in job.segments
        if (rows := tuple(row for row in segment.rows if row in entries))
    )
    return replace(job, entries=entries, segments=segments)


def _needed(nbytes: int) -> int:
    """Return about how much memory it should take to convert a payload: see `workers.tasks.convert`."""
    return 2 * nbytes if PIECE_BYTES < nbytes <= MAX_CONVERTED_BYTES else 2 * min(nbytes, PIECE_BYTES)


def _memory_left() -> int:
    """Return what this worker may still take of its limit, in bytes."""
    from distributed.system import MEMORY_LIMIT
    from distributed.worker import get_worker

    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:  # no worker: called by itself
        limit = None
    used = _status("VmRSS")
    return max((limit or MEMORY_LIMIT) - used, _LEAST_MEMORY_NBYTES)


def _carry_out(order: _Order) -> _End:
    """Have a process do it; return what came of it."""
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
            # Not from the working directory, which may be anything: from where this module is.
            [sys.executable, "-P", "-X", "faulthandler", "-c", _PROGRAM, *map(str, fds)],
            env={**os.environ, "PYTHONPATH": _python_path(), "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            code = process.wait()
        finally:
            process.kill()
        if code == 0:
            # Written by this module; what a file could make of that process, it could make of a worker.
            report.seek(0)
            end: _End = pickle.load(report)  # noqa: S301
            return end
        row = os.pread(fds[2], _ROW_NBYTES, 0)
        return _Death(int.from_bytes(row, "little") if row else -1, _how(code))


def _python_path() -> str:
    here = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))


def _how(code: int) -> str:
    if code == _OUT_OF_MEMORY:
        return "out of memory"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def _status(field: str) -> int:
    """Return a size of this process in bytes, as /proc has it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def serve(given: int, report: int, progress: int) -> None:
    """Carry out the order that stands in one open file, and answer in another; ends the process."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(given, "rb") as file:
        order: _Order = pickle.load(file)  # noqa: S301  (of `_carry_out`)
    # All that it takes to read a file is there before the first one: no file is to blame for what dies here.
    _exercise(0)
    limit = _status("VmData") + order.memory_nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def begin(row: int) -> None:
        os.pwrite(progress, row.to_bytes(_ROW_NBYTES, "little"), 0)

    run: dict[str, Callable[[], Any]] = {
        _WRITE: lambda: convert_here(order.job, begin),
        _READ: lambda: dry_run(order.job, begin),
        _CONTROL: lambda: _exercise(order.need_nbytes),
    }
    end: _End
    try:
        end = run[order.what]()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as exc:  # noqa: BLE001  (whatever it is, it goes to where the job came from)
        end = _sendable(exc)
    with os.fdopen(report, "wb") as answer:
        pickle.dump(end, answer, protocol=5)
    # At once: threads of a client of the store have nothing left to do.
    os._exit(0)


def _exercise(nbytes: int) -> None:
    """Do once what is done with a file, with numbers that come from nowhere, and use so much memory."""
    import numpy as np
    from numcodecs import Blosc

    values = np.linspace(-1, 1, MIB // 4, dtype=np.float32)
    running = RunningStatistics()
    running.update(values)
    running.result()
    Blosc("lz4", 5, Blosc.BITSHUFFLE, typesize=4).encode(values)
    np.ones(nbytes, np.uint8)


def _sendable(exc: Exception) -> Exception:
    return as_error("in a process of its own", exc)


def _end_with(parent: int) -> None:
    """End when the worker has ended: nobody waits for the answer."""
    while os.getppid() == parent:
        time.sleep(_WATCH_PARENT_S)
    os._exit(1)
