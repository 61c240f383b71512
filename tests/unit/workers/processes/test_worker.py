"""Worker processes: as copies and as new interpreters, what they run, and how they end."""

import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.model import MIB
from workers.processes.worker import Channel, WorkerProcess, start_process

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[4]


def ask(process: WorkerProcess, function: Any, *arguments: Any) -> tuple[bool, Any]:
    process.channel.send(pickle.dumps((function, arguments)))
    answer: tuple[bool, Any] = pickle.loads(process.channel.receive())  # noqa: S301  (from a child)
    return answer


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    """A worker in a new interpreter: pytest has other threads."""
    process = start_process(512 * MIB, os.getpid)
    assert process.channel.receive() == b"ready"
    yield process
    process.kill()
    process.wait()


def test_a_process_runs_one_task_after_the_other(process: WorkerProcess) -> None:
    assert ask(process, divmod, 7, 2) == (True, (3, 1))
    has_succeeded, error = ask(process, divmod, 7, 0)
    assert not has_succeeded
    assert isinstance(error, ZeroDivisionError)
    assert ask(process, os.getpid) == (True, process.pid)


def test_memory_is_bounded_and_subprocesses_may_have_a_bound_of_their_own(process: WorkerProcess) -> None:
    has_succeeded, error = ask(process, bytearray, 600 * MIB)
    assert (has_succeeded, type(error)) == (False, MemoryError)
    _, (soft, hard) = ask(process, resource.getrlimit, resource.RLIMIT_DATA)
    assert soft < hard or hard == resource.RLIM_INFINITY
    assert ask(process, divmod, 7, 2) == (True, (3, 1))


def test_the_end_of_a_process_says_how_it_ended() -> None:
    process = start_process(512 * MIB, os.getpid)
    assert process.channel.receive() == b"ready"
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EOFError):
        process.channel.receive()
    assert process.wait() == "SIGKILL"
    process.kill()  # nothing, and no other process


#: Starts two workers while it has a single thread, prints their ids and modules, and is killed.
_COPIES = """
import os, pickle, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import colorsys
from workers.processes.worker import Copy, start_process
started = [start_process(512 << 20, os.getpid) for _ in range(2)]
for process in started:
    assert isinstance(process._child, Copy), "has threads"
    assert process.channel.receive() == b"ready"
    process.channel.send(pickle.dumps((eval, ("'colorsys' in __import__('sys').modules",))))
    assert pickle.loads(process.channel.receive()) == (True, True)
print(*(process.pid for process in started), flush=True)
sys.stdin.read()
"""


def test_copies_have_all_modules_and_end_with_their_parent_however_it_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _COPIES], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.05)


def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def test_the_end_of_a_channel_reaches_both_ends() -> None:
    ours, theirs = pair()

    def wait() -> None:
        with pytest.raises(EOFError):
            ours.receive()

    waiting = threading.Thread(target=wait)
    waiting.start()
    ours.close()
    waiting.join(30)
    assert not waiting.is_alive()
    with pytest.raises(EOFError):
        theirs.receive()
    with pytest.raises(EOFError):
        ours.send(b"more")
    theirs.close()


REPOSITORY = Path(__file__).parents[4]


def test_a_worker_keeps_to_limits_and_loads_no_service() -> None:
    code = (
        "import os, sys\n"
        "from workers.host.resources import CpuLimits, throttle\n"
        "from workers.processes.worker import prepare\n"
        "prepare(CpuLimits(nice=7, share=0.5), 0.25)\n"
        "print(max(os.nice(0), 7) == os.nice(0), throttle._share, 'ingest' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], cwd=REPOSITORY, text=True)
    assert said.split() == ["True", "0.25", "False"]
