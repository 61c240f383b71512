"""The whole service as an operator runs it, each part in its own process, and a job that dumps."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.load import npy_header
from bench.setting import WORKERS
from ingest.api import open_store
from tests.cli import Running, start
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port, http_get
from workers.errors import DumpIngestError

#: Number and float32 bytes of files in a step of a job that dumps often: losses, norms, a few activations.
OFTEN = ((24, 1024), (6, 65_536))
#: The job makes whole steps appear at once, so nothing has to settle.
_ENVIRONMENT = {
    "DUMP_INGEST_QUIET_S": "1",
    "DUMP_INGEST_SETTLE_S": "0",
    "DUMP_INGEST_POLL_S": "0.5",
}


class Job:
    """A training job of one rank. Each of its steps appears as a whole, and it removes old steps."""

    def __init__(self, directory: Path, step: Sequence[tuple[int, int]] = OFTEN) -> None:
        """Prepare the files of a step; nothing is dumped yet.

        Args:
            directory: the job dumps below `directory/dump`.
            step: for each kind of file, how many there are in a step, and how many bytes each has.
        """
        self.dump = directory / "dump"
        self.steps = 0
        """How many steps the job has dumped."""
        self._removed = 0
        self._ahead = directory / "ahead"
        self._graph = self.dump / "rank_0" / "Net" / "0"
        self._graph.mkdir(parents=True)
        random = np.random.default_rng(0)
        self._files = {
            f"MatMul.op{kind}-{number}.0.0.{1000 + number}.output.0.DefaultFormat.Float32.npy": npy_header(
                "<f4", (nbytes // 4,)
            )
            + random.standard_normal(nbytes // 4, np.float32).tobytes()
            for kind, (count, nbytes) in enumerate(step)
            for number in range(count)
        }
        self.step_nbytes = sum(map(len, self._files.values()))

    def write(self, count: int = 1) -> None:
        """Dump `count` steps; they appear together."""
        for step in range(self.steps, self.steps + count):
            directory = self._ahead / str(step)
            directory.mkdir(parents=True)
            for name, content in self._files.items():
                (directory / name).write_bytes(content)
        for step in range(self.steps, self.steps + count):
            (self._ahead / str(step)).rename(self._graph / str(step))
        self.steps += count

    def remove_below(self, step: int) -> None:
        """Remove all steps before `step`."""
        for old in range(self._removed, step):
            shutil.rmtree(self._graph / str(old))
        self._removed = max(self._removed, step)


@dataclass(frozen=True, slots=True)
class Processes:
    """The parts of a running service."""

    watcher: Running
    pids: Mapping[str, int]
    """Process ids by part."""
    metrics_port: int
    """Where the watcher serves its metrics."""

    def metric(self, name: str) -> float:
        """Return a metric of the watcher, summed over its labels; 0 if it has no value yet."""
        text = http_get(self.metrics_port, "/metrics")[1].decode()
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values))

    @property
    def commits(self) -> int:
        """How many steps this watcher has committed."""
        return int(self.metric("dump_ingest_watcher_commits_total"))

    def wait_for_commits(self, count: int) -> float:
        """Wait until `count` steps are committed; return the time by `time.monotonic`."""
        self.watcher.wait_until(lambda: _slowly(self.commits >= count), timeout_s=600)
        return time.monotonic()


def _slowly(is_done: bool) -> bool:  # noqa: FBT001
    """Return the argument; sleep first if it is false, because each question costs the watcher time."""
    if not is_done:
        time.sleep(0.05)
    return is_done


@contextmanager
def cluster(env: Mapping[str, str] | None = None) -> Iterator[DaskCluster]:
    """Run a scheduler and `WORKERS` workers."""
    with DaskCluster(workers=WORKERS, env=env) as running:
        yield running


@contextmanager
def service(
    dask: DaskCluster, dump: Path, store: str, env: Mapping[str, str] | None = None
) -> Iterator[Processes]:
    """Run a watcher and a consolidator on a running cluster."""
    port = free_port()
    variables = {**_ENVIRONMENT, **(env or {})}
    variables["DUMP_INGEST_SCHEDULER"] = dask.address
    words = ("--store", store, "--metrics", f"127.0.0.1:{port}")
    with start("watch", dump, *words, env=variables) as watcher:
        watcher.wait_until(lambda: any(watcher.events("watching")), timeout_s=60)
        with _consolidator(store, variables) as consolidator:
            pids = {"watcher": watcher.pid, **dask.pids, "consolidator": consolidator.pid}
            try:
                yield Processes(watcher, pids, port)
            finally:
                assert consolidator.alive, consolidator.said


@contextmanager
def _consolidator(store: str, env: Mapping[str, str]) -> Iterator[Running]:
    # It would stand by for seconds until the watcher has made the store with the first step.
    while True:
        try:
            open_store(store)
            break
        except DumpIngestError:
            time.sleep(0.1)
    with start("consolidate", store, "--follow", "--poll", "2", env=env) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources that a process holds at one moment."""

    rss_nbytes: int
    descriptors: int


def sample(pid: int) -> Sample:
    """Return what a process holds now; no memory if it has ended."""
    with Path(f"/proc/{pid}/status").open() as status:
        resident = [line for line in status if line.startswith("VmRSS:")] or ["VmRSS: 0 kB"]
    return Sample(1024 * int(resident[0].split()[1]), len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used so far, in seconds."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
