"""Measure from outside how long a component takes to recover after a fault."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import fsspec
from distributed.core import rpc

from tests.faults.plan import Fault
from tests.faults.system import System

PATIENCE_S = 120.0
_WATCHERS = ("watcher-0", "watcher-1")


@dataclass
class Commits:
    """Observes the commit counters of the watchers; records when they grow, by the clock of this process."""

    system: System
    stop: threading.Event = field(default_factory=threading.Event)
    last_at: float = float("-inf")
    total: int = 0
    _before: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Read the counters until `stop` is set."""
        while not self.stop.wait(0.5):
            for name in _WATCHERS:
                count = self.system.metric(name, "dump_ingest_watcher_commits_total")
                if count is None:
                    continue
                before = self._before.get(name, 0.0)
                # The counter of a restarted watcher begins at 0.
                new = count if count < before else count - before
                if new:
                    self.last_at, self.total = time.monotonic(), self.total + int(new)
                self._before[name] = count


@dataclass(frozen=True, slots=True)
class Recovery:
    """The times, in seconds, from the end of a fault to the recovery of its component and to the next commit.

    None means that it did not happen within `PATIENCE_S`, or before the campaign ended.
    """

    fault: Fault
    well_s: float | None
    commit_s: float | None


def measure(system: System, fault: Fault, commits: Commits, stop: threading.Event) -> Recovery:
    """Wait from the end of a fault until the component has recovered and a step is committed.

    Gives up after `PATIENCE_S`, or when `stop` is set.
    """
    healed, wall = time.monotonic(), time.time()
    has_recovered = _sign_of_life(system, fault, wall)
    well_s = commit_s = None
    while time.monotonic() - healed < PATIENCE_S and not stop.is_set():
        if well_s is None and has_recovered():
            well_s = time.monotonic() - healed
        if commit_s is None and commits.last_at > healed:
            commit_s = commits.last_at - healed
        if well_s is not None and commit_s is not None:
            break
        stop.wait(0.25)
    return Recovery(fault, well_s, commit_s)


def _sign_of_life(system: System, fault: Fault, wall: float) -> Callable[[], bool]:
    """Return a function that tells whether the component of a fault works again; `wall` is the time now."""
    if fault.component in ("worker", "nanny", "scheduler"):
        return lambda: workers_seen(system, wall) >= system.workers
    if fault.component in ("gateway", "OSD", "S3"):
        return lambda: store_answers(system)
    if fault.component == "gc":
        return lambda: True  # nobody waits for it
    metric = {
        "watcher": "dump_ingest_watcher_last_look_timestamp_seconds",
        "consolidator": "dump_ingest_consolidator_last_round_timestamp_seconds",
    }[fault.component]
    name = {"watcher": "watcher-0"}.get(fault.component, fault.component)
    before = system.metric(name, metric) if not fault.name.startswith("kill") else None

    def has_finished_a_round() -> bool:
        now = system.metric(name, metric)
        return bool(now) and now != before

    return has_finished_a_round


def workers_seen(system: System, since: float) -> int:
    """Return the number of workers from which the scheduler has heard since a time."""

    async def ask() -> dict[str, Any]:
        async with rpc(system.scheduler, timeout=2) as scheduler:
            identity: dict[str, Any] = await asyncio.wait_for(scheduler.identity(n_workers=-1), 3)
            return identity

    try:
        identity = asyncio.run(ask())
    except (OSError, TimeoutError):
        return 0
    return sum(worker["last_seen"] > since for worker in identity["workers"].values())


def store_answers(system: System) -> bool:
    """Return whether an object can be written through the proxy."""
    options = dict(system.bucket.storage_options)
    options["client_kwargs"] = {
        **options["client_kwargs"],
        "endpoint_url": f"http://127.0.0.1:{system.proxy.port}",
    }
    options["config_kwargs"] = {"connect_timeout": 2, "read_timeout": 3, "retries": {"max_attempts": 0}}
    try:
        files = fsspec.filesystem("s3", **options)
        files.pipe_file(f"{system.bucket.name}/probe/{uuid.uuid4().hex}", b"probe")
    except Exception:  # noqa: BLE001  (whatever the client raises, the store does not answer)
        return False
    return True
