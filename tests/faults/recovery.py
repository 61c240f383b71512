"""When is a component well again? Asked from outside, after each fault."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import fsspec

from tests.faults.plan import Fault
from tests.faults.system import System

PATIENCE_S = 120.0
_WATCHERS = ("watcher-0", "watcher-1")


@dataclass
class Commits:
    """Notes when watchers have committed something, by their own counters and the clock of this process."""

    system: System
    stop: threading.Event = field(default_factory=threading.Event)
    last_at: float = float("-inf")
    total: int = 0
    _before: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Go on until told to stop."""
        while not self.stop.wait(0.5):
            for name in _WATCHERS:
                found = self.system.metric(name, "dump_ingest_watcher_commits_total")
                if found is None:
                    continue
                before = self._before.get(name, 0.0)
                # A watcher that was started again counts from 0.
                more = found if found < before else found - before
                if more:
                    self.last_at, self.total = time.monotonic(), self.total + int(more)
                self._before[name] = found


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long after it was healed a component was well, and the next step was committed, in seconds."""

    fault: Fault
    well_s: float | None
    commit_s: float | None
    """None: nobody was waiting for it any more."""


def measure(system: System, fault: Fault, commits: Commits, stop: threading.Event) -> Recovery:
    """Wait until a component is well, and a step is committed, or `stop` is set."""
    healed, wall = time.monotonic(), time.time()
    sign = _sign(system, fault, wall)
    well_s = commit_s = None
    while time.monotonic() - healed < PATIENCE_S and not stop.is_set():
        if well_s is None and sign():
            well_s = time.monotonic() - healed
        if commit_s is None and commits.last_at > healed:
            commit_s = commits.last_at - healed
        if well_s is not None and commit_s is not None:
            break
        stop.wait(0.25)
    return Recovery(fault, well_s, commit_s)


def _sign(system: System, fault: Fault, wall: float) -> Any:
    if fault.component in ("worker", "nanny", "scheduler"):
        return lambda: workers_seen(system, wall) >= system.workers
    if fault.component in ("gateway", "OSD", "S3"):
        return lambda: store_answers(system)
    metric = {
        "watcher": "dump_ingest_watcher_last_look_timestamp_seconds",
        "consolidator": "dump_ingest_consolidator_last_round_timestamp_seconds",
    }[fault.component]
    name = {"watcher": "watcher-0"}.get(fault.component, fault.component)
    before = system.metric(name, metric) if not fault.name.startswith("kill") else None

    def has_looked() -> bool:
        now = system.metric(name, metric)
        return bool(now) and now != before

    return has_looked


def workers_seen(system: System, since: float) -> int:
    """Return how many workers the scheduler has heard of since then."""

    async def ask() -> dict[str, Any]:
        from distributed.core import rpc

        async with rpc(system.scheduler, timeout=2) as scheduler:
            found: dict[str, Any] = await asyncio.wait_for(scheduler.identity(n_workers=-1), 3)
            return found

    try:
        found = asyncio.run(ask())
    except (OSError, TimeoutError):
        return 0
    return sum(1 for worker in found["workers"].values() if worker["last_seen"] > since)


def store_answers(system: System) -> bool:
    """Whether an object can be written through the proxy."""
    options = dict(system.bucket.storage_options)
    options["client_kwargs"] = {
        **options["client_kwargs"],
        "endpoint_url": f"http://127.0.0.1:{system.proxy.port}",
    }
    options["config_kwargs"] = {"connect_timeout": 2, "read_timeout": 3, "retries": {"max_attempts": 0}}
    try:
        files = fsspec.filesystem("s3", **options)
        files.pipe_file(f"{system.bucket.name}/probe/{uuid.uuid4().hex}", b"probe")
    except Exception:  # noqa: BLE001  (whatever the client raises: it does not answer)
        return False
    return True
