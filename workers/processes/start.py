"""Starts a worker process: as a copy of this process while it has a single thread, else in a new interpreter.

A copy has every module that this process has imported, at the cost of some milliseconds instead of 0.4 s. But
only the thread that forks goes on in it, and locks that others hold would stay locked for ever.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from workers.host.interpreter import environment
from workers.processes.channel import Channel, packed
from workers.processes.serve import serve

_PROGRAM = "from workers.processes.serve import main; main()"
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
#: The descriptors that a copy keeps besides its channel: standard input, output and error.
_STANDARD_FDS = 3
#: How long a process may take to end that was killed, or that closed its channel, in seconds.
_ENDED_S = 5.0
_LOOK_S = 0.01


class ProcessDied(Exception):
    """The process that had a task has ended without an answer; the text says how."""


class Child(Protocol):
    """A child of this process."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs. Reap it."""


class Copy:
    """A child that was forked, as `subprocess.Popen` has those that it has started."""

    def __init__(self, pid: int) -> None:
        """Remember the child."""
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs. Reap it."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                self._code = 0
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class WorkerProcess:
    """A worker process and the channel to it."""

    def __init__(self, child: Child, channel: Channel) -> None:
        """Take over a child that was just started."""
        self.channel = channel
        self._child = child
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def kill(self) -> None:
        """Kill it and close the channel, so that nobody waits for it, even if it hangs."""
        with self._lock:
            if self._child.poll() is None:  # not reaped, so the number is still its own
                os.kill(self._child.pid, signal.SIGKILL)
        self.channel.close()

    def wait(self, seconds: float = _ENDED_S) -> str:
        """Wait for its end; return how it ended, for people. One that the kernel does not let go is left."""
        deadline = time.monotonic() + seconds
        while (code := self._poll()) is None:
            if time.monotonic() > deadline:
                return "it does not end"
            time.sleep(_LOOK_S)
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"exit code {code}"

    def _poll(self) -> int | None:
        with self._lock:
            return self._child.poll()


def start_process(memory_nbytes: int, prepare: Callable[[], object]) -> WorkerProcess:
    """Start a worker process.

    Args:
        memory_nbytes: memory that it may use in addition to what it has at its start.
        prepare: called by the process before its first task; imported there by its name, with its arguments.

    Raises:
        OSError: the system refuses.
    """
    ours, theirs = socket.socketpair()
    try:
        # Until the child has its own handlers, it must not run the handlers of this process.
        with _blocked(_SIGNALS):
            if _has_one_thread():
                child: Child = _fork(theirs, memory_nbytes, prepare)
            else:
                child = _spawn(theirs, memory_nbytes)
                ours.sendall(packed(pickle.dumps(prepare, protocol=5)))
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return WorkerProcess(child, Channel(ours))


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_one_thread() -> bool:
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  (of libraries, too)


def _fork(theirs: socket.socket, memory_nbytes: int, prepare: Callable[[], object]) -> Copy:
    pid = os.fork()
    if pid:
        return Copy(pid)
    try:
        # Other workers' channels among them: their other ends must close when the parent ends.
        number = theirs.fileno()
        os.closerange(_STANDARD_FDS, number)
        os.closerange(number + 1, os.sysconf("SC_OPEN_MAX"))
        serve(theirs, memory_nbytes, prepare)
    finally:
        os._exit(1)


def _spawn(theirs: socket.socket, memory_nbytes: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # Without the working directory, which may be anything.
        [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), str(memory_nbytes)],
        env={**environment(), "OPENBLAS_NUM_THREADS": "1"},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
