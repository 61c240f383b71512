"""The whole service as an operator runs it, each part a process of its own, and a job that dumps for it."""

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
from tests.cli import Running, start
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port, http_get

#: Files of a step as a job dumps it often (losses, norms, a few activations), and float32 bytes of each.
OFTEN = ((24, 1024), (6, 65_536))
#: Whole steps appear at once, so nothing has to settle.
_ENVIRONMENT = {
    "DUMP_INGEST_QUIET_S": "1",
    "DUMP_INGEST_SETTLE_S": "0",
    "DUMP_INGEST_POLL_S": "0.5",
}


class Job:
    """A training job of one rank that dumps steps, each of them whole at once, and removes old ones."""

    def __init__(self, directory: Path, step: Sequence[tuple[int, int]] = OFTEN) -> None:
        """Write steps of so many files of so many bytes below `directory/dump`."""
        self.dump = directory / "dump"
        self.steps = 0
        """How many it has dumped."""
        self._removed = 0
        self._ahead = directory / "ahead"
        self._where = self.dump / "rank_0" / "Net" / "0"
        self._where.mkdir(parents=True)
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
        """Dump so many steps; they appear together."""
        for step in range(self.steps, self.steps + count):
            directory = self._ahead / str(step)
            directory.mkdir(parents=True)
            for name, content in self._files.items():
                (directory / name).write_bytes(content)
        for step in range(self.steps, self.steps + count):
            (self._ahead / str(step)).rename(self._where / str(step))
        self.steps += count

    def remove_below(self, step: int) -> None:
        """Remove the steps below `step`."""
        for old in range(self._removed, step):
            shutil.rmtree(self._where / str(old))
        self._removed = max(self._removed, step)


@dataclass(frozen=True, slots=True)
class Processes:
    """The parts of a service that runs."""

    watcher: Running
    pids: Mapping[str, int]
    """By part."""
    metrics_port: int
    """Of the watcher."""

    def metric(self, name: str) -> float:
        """Return a metric of the watcher, summed up over its labels; 0 while there is none."""
        text = http_get(self.metrics_port, "/metrics")[1].decode()
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    @property
    def commits(self) -> int:
        """Steps that this watcher has seen committed."""
        return int(self.metric("dump_ingest_watcher_commits_total"))

    def wait_for_commits(self, count: int, timeout_s: float = 600) -> float:
        """Return when so many are committed; the moment, as `time.monotonic` has it."""
        self.watcher.wait_until(lambda: _slowly(self.commits >= count), timeout_s=timeout_s)
        return time.monotonic()


def _slowly(is_done: bool) -> bool:  # noqa: FBT001
    # To ask is work for the watcher, too.
    if not is_done:
        time.sleep(0.05)
    return is_done


@contextmanager
def cluster(env: Mapping[str, str] | None = None) -> Iterator[DaskCluster]:
    """Run a scheduler and as many workers as the machine that figures are for has cores."""
    with DaskCluster(workers=WORKERS, env=env) as running:
        yield running


@contextmanager
def service(
    dask: DaskCluster, dump: Path, store: str, env: Mapping[str, str] | None = None
) -> Iterator[Processes]:
    """Run a watcher and a consolidator with a cluster that runs."""
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
    from ingest.api import open_store
    from workers.errors import DumpIngestError

    # It ends where there is no store yet; and the watcher makes one with the first step.
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
    """What a process holds at one moment."""

    rss_nbytes: int
    descriptors: int


def sample(pid: int) -> Sample:
    """Look at a process."""
    with Path(f"/proc/{pid}/status").open() as status:
        # A process that has ended has none.
        resident = [line for line in status if line.startswith("VmRSS:")] or ["VmRSS: 0 kB"]
    return Sample(1024 * int(resident[0].split()[1]), len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
