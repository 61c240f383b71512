"""The worker processes of a command."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ingest.dispatch.processes import ProcessWorkers, count_of_workers
from workers.errors import ClusterError
from workers.host.resources import CpuLimits

pytestmark = pytest.mark.timeout(180)


def wait_until(is_so: Any) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_there_is_a_worker_for_each_processor_unless_somebody_chooses() -> None:
    assert count_of_workers(3) == 3
    assert count_of_workers(None) == min(len(os.sched_getaffinity(0)), 8)


def test_the_same_client_is_given_until_the_processes_end() -> None:
    """And workers that end before they are ready are an error and not a loop."""

    def refuse() -> Any:
        raise OSError("no more processes")

    with ProcessWorkers(1, CpuLimits()) as workers:
        own = workers.connect()
        assert workers.connect() is own
        own._start = refuse
        pid = own.submit(os.getpid, key="pid").result(60)
        assert Path(f"/proc/{pid}").exists()
        os.kill(pid, signal.SIGKILL)
        pending = own.submit(os.getpid, key="pending")
        wait_until(lambda: pending.status != "pending")
        wait_until(lambda: own.status == "closed")
        with pytest.raises(ClusterError, match="ended before they were ready"):
            workers.connect()
        assert workers.connect().submit(os.getpid, key="again").result(60) != pid
