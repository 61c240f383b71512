"""Processes of a cluster of our own: started out of reach of Ctrl-C, and ended at once."""

import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from ingest.dispatch.own_dask_cluster import end_dask_workers, start_dask_workers
from workers.errors import ClusterError


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Leave the loggers of Dask as they were."""
    names = ("distributed", "tornado.application", "bokeh")
    levels = [logging.getLogger(name).level for name in names]
    yield
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def test_processes_are_started_where_ctrl_c_is_blocked() -> None:
    def start() -> tuple[bool, bool]:
        command = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
        child = subprocess.check_output([sys.executable, "-S", "-c", command], text=True)
        return threading.current_thread() is threading.main_thread(), child.strip() == "True"

    assert start_dask_workers(start) == (False, True)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_what_does_not_start_is_an_error_of_the_cluster() -> None:
    def fail() -> None:
        raise OSError("no ports " + "x" * 1000)

    with pytest.raises(ClusterError, match="cannot start workers: no ports") as error:
        start_dask_workers(fail)
    assert len(error.value.message) <= 500


@dataclass
class Nanny:
    """Has the attributes of a nanny of Dask that matter here."""

    pid: int | None
    auto_restart: bool = True


@dataclass
class Cluster:
    """Has the attributes of a cluster of Dask that matter here."""

    workers: dict[str, Nanny]
    closed: list[float] = field(default_factory=list)

    def close(self, timeout: float) -> None:
        assert not any(nanny.auto_restart for nanny in self.workers.values())
        self.closed.append(timeout)


def test_workers_are_killed_whatever_they_are_at_and_none_comes_back() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    ended = subprocess.Popen(["true"])
    ended.wait()
    cluster: Any = Cluster({"a": Nanny(process.pid), "b": Nanny(ended.pid), "c": Nanny(None)})
    end_dask_workers(cluster)
    assert process.wait(60) == -signal.SIGKILL
    assert len(cluster.closed) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
