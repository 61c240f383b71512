"""What a worker process does: run the tasks that it is sent, one after the other, until its parent ends."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import queue
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from workers.host.memory import data_nbytes
from workers.model import MIB
from workers.processes.channel import Channel

#: What malloc gives back to the system, and what it takes from it directly (mallopt(3)): by default, encoded
#: chunks cost fresh pages.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = (-1, 16 * MIB), (-3, 4 * MIB)
#: The first message of a process: it is ready.
READY = b"ready"


def serve(end: socket.socket, memory_nbytes: int, prepare: Callable[[], object]) -> NoReturn:
    """Run tasks until the parent closes its end or has ended; never returns.

    A task is a pickled pair of function and arguments; the answer is a pickled pair of whether it succeeded,
    and the result or the error.

    Args:
        end: this process' end of the channel.
        memory_nbytes: memory that it may use in addition to what it has now. Beyond it, a task ends with
            MemoryError.
        prepare: called first.
    """
    # Ctrl-C on a terminal reaches all processes of the command: the parent decides what is finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    _keep_freed_memory()
    # The soft limit only: subprocesses of a task set their own.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (data_nbytes() + memory_nbytes, hard))
    gc.freeze()  # large plans trigger full garbage collections, which need not visit what is loaded by now
    channel = Channel(end)
    tasks: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, tasks), daemon=True).start()
    prepare()
    try:
        channel.send(READY)
        while True:
            channel.send(_run(tasks.get()))
    except EOFError:
        _end()


def _receive(channel: Channel, tasks: queue.SimpleQueue[bytearray]) -> None:
    """Receive tasks in a separate thread, which notices the end of the parent even while a task runs."""
    try:
        while True:
            tasks.put(channel.receive())
    except EOFError:
        _end()


def _run(message: bytearray) -> bytes:
    answer: tuple[bool, Any]
    try:
        function, arguments = pickle.loads(message)  # noqa: S301  (from the parent)
        answer = True, function(*arguments)
    except Exception as exc:  # noqa: BLE001  (whatever it is, the parent raises it)
        answer = False, exc
    try:
        pickled = pickle.dumps(answer, protocol=5)
        if not answer[0]:
            pickle.loads(pickled)  # noqa: S301  (just made: the parent must be able to do the same)
    except Exception as exc:  # noqa: BLE001  (a result or an error of a library that cannot be pickled)
        text = f"{type(answer[1]).__name__}: {answer[1]} ({exc})"[:500]
        pickled = pickle.dumps((False, RuntimeError(text)), protocol=5)
    return pickled


def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is not None:
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(*option)


def _end() -> NoReturn:
    """End at once, without the handlers of the parent, of which this may be a copy."""
    os._exit(0)


def main() -> NoReturn:
    """Serve in a new interpreter: its arguments are the number of a socket and a number of bytes.

    The first message says how to prepare the process.
    """
    number, memory_nbytes = map(int, sys.argv[1:])
    end = socket.socket(fileno=number)
    prepare = pickle.loads(Channel(end).receive())  # noqa: S301  (from the parent)
    serve(end, memory_nbytes, prepare)
