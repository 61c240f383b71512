"""Worker processes of one command: how they are started, what they run, and how they are spoken to.

A command that takes one dump needs no scheduler: its workers are its children, connected by a pair of sockets
that nobody else can reach. A message is a length, and as many bytes. A worker runs the tasks that it is sent,
one after the other, until its parent ends.

It is started as a copy of this process while that has a single thread, else in a new interpreter. A copy has
every module that this process has imported, at the cost of some milliseconds instead of 0.4 s. But only the
thread that forks goes on in it, and locks that others hold would stay locked for ever.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from workers.arrays.compiled import kernels
from workers.host.paths import environment
from workers.host.resources import CpuLimits, data_nbytes, throttle
from workers.model import MIB

_LENGTH = struct.Struct("<Q")


def packed(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return _LENGTH.pack(len(message)) + message


class Channel:
    """One end. One thread sends and receives; any thread may close it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: bytes) -> None:
        """Send a message.

        Raises:
            EOFError: the other process has ended, or the channel is closed.
        """
        try:
            self._end.sendall(_LENGTH.pack(len(message)))
            self._end.sendall(message)
        except OSError as exc:
            raise EOFError from exc

    def receive(self) -> bytearray:
        """Wait for a message and return it.

        Raises:
            EOFError: the other process has ended, or the channel is closed.
        """
        (length,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))
        return self._receive_exactly(length)

    def close(self) -> None:
        """Have both ends see the end of the channel, also a thread that waits for a message."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _receive_exactly(self, nbytes: int) -> bytearray:
        received = bytearray(nbytes)
        view = memoryview(received)
        while view.nbytes:
            try:
                n = self._end.recv_into(view)
            except OSError as exc:
                raise EOFError from exc
            if not n:
                raise EOFError
            view = view[n:]
        return received


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


def prepare(limits: CpuLimits, part: float) -> None:
    """Keep to limits, and load the loops over tensors while the first step is planned.

    Args:
        limits: of the command and its workers.
        part: how much of one processor this process may use.
    """
    limits.apply()
    throttle.limit(part)
    threading.Thread(target=kernels.warm_up, daemon=True).start()


_PROGRAM = "from workers.processes.worker import main; main()"
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
#: The descriptors that a copy keeps besides its channel: standard input, output and error.
_STANDARD_FDS = 3
#: How long a process may take to end that was killed, or that closed its channel, in seconds.
_ENDED_S = 5.0
_LOOK_S = 0.01


class ProcessDied(Exception):
    """The process that had a task has ended without an answer; the text says how."""


class Copy:
    """A child that was forked, as `subprocess.Popen` has those that it has started."""

    def __init__(self, pid: int) -> None:
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


def how_ended(code: int) -> str:
    """Return the name of the signal that ended a process, or its exit code, for people."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


class WorkerProcess:
    """A worker process and the channel to it."""

    def __init__(self, child: subprocess.Popen[bytes] | Copy, channel: Channel) -> None:
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
        return how_ended(code)

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
            if len(os.listdir("/proc/self/task")) == 1:  # noqa: PTH208  (threads of libraries, too)
                child: subprocess.Popen[bytes] | Copy = _fork(theirs, memory_nbytes, prepare)
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
