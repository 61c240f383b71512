"""A store that is so slow that nothing gets done: the memory of the service is bounded, whatever waits."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from bench.running import sample
from tests import checker
from tests.cli import own_workers, start
from tests.npy_files import MadeDump, tensor_name
from tests.servers.process import free_port, http_get

pytestmark = pytest.mark.dask

#: Names, sizes and times of the files that wait are held; see docs/operation.md.
_FILE_NBYTES = 2048
#: What comes and goes with listing, in any case.
_SLACK_NBYTES = 12 * 1024 * 1024


def test_the_memory_of_watcher_and_worker_does_not_grow_with_the_backlog(tmp_path: Path) -> None:
    made = MadeDump(tmp_path / "dump")
    store = tmp_path / "run.zarr"
    values = np.zeros(16_384, "<f4")

    def dump(steps: range) -> None:
        for step in steps:
            made.add(values + step, tensor_name(time=step), step=step)

    def pending() -> int:
        lines = http_get(port, "/metrics")[1].decode().splitlines()
        found = [line for line in lines if line.startswith("dump_ingest_watcher_pending_steps{")]
        return sum(int(float(line.split()[1])) for line in found)

    port = free_port()
    env = {"DUMP_INGEST_INFLIGHT_SIZE": "256KiB", "DUMP_INGEST_METRICS": f"127.0.0.1:{port}"}
    dump(range(5))
    with start("watch", made.root, "--store", store, env=env) as watch:
        watch.wait_until(lambda: len(watch.events("step_committed")) == 5, timeout_s=60)
        (worker,) = own_workers(watch.pid)
        os.kill(worker, signal.SIGSTOP)
        dump(range(5, 60))
        watch.wait_until(lambda: pending() == 55)
        before = sample(watch.pid).rss_nbytes, sample(worker).rss_nbytes
        dump(range(60, 460))
        watch.wait_until(lambda: pending() == 455)
        grown = sample(watch.pid).rss_nbytes - before[0]
        assert grown < 400 * _FILE_NBYTES + _SLACK_NBYTES < 400 * values.nbytes
        os.kill(worker, signal.SIGCONT)
        watch.wait_until(lambda: pending() == 0, timeout_s=120)
        assert sample(worker).rss_nbytes - before[1] < _SLACK_NBYTES
        assert watch.terminate() == 0
    checker.check(store, made.root)
