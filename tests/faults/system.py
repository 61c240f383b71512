"""Run the real system on loopback, each part as its own process, with a supervisor that restarts them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

from tests.faults.proxy import Proxy
from tests.servers.ceph import CephS3
from tests.servers.process import ServerGroup, free_port, http_get, listens

_BIN = Path(sys.executable).parent
_FAKETIME = [
    Path(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1") for machine in ("x86_64", "aarch64")
]
#: The time before a dead service is restarted: shorter than systemd's `RestartSec`, 5 s in deploy/systemd.
RESTART_S = 1.0
SCRATCH_NBYTES = 16 * 2**20
#: How long `gc` leaves alone what no commit points to: longer than any process is stopped.
GC_GRACE_S = 90
Clock: TypeAlias = Literal["watcher", "worker", "consolidator", "scheduler"]
CLOCKS: tuple[Clock, ...] = get_args(Clock)


def faketime() -> Path | None:
    """Return the library that shifts the clock of a process, or None if it is not installed."""
    return next((path for path in _FAKETIME if path.exists()), None)


class System:
    """Ceph behind a proxy, Dask, watchers and consolidator, for the duration of the `with` block."""

    def __init__(self, dump: Path, *, seed: int, workers: int = 2, deletes: bool = False) -> None:
        self.dump = dump
        self.workers = workers
        self._nannies = [f"nanny-{number}" for number in range(workers)]
        self._after_commit = "delete" if deletes else "keep"
        self._seed = seed
        self._wanted: set[str] = set()
        self._argv: dict[str, list[str]] = {}
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self.restarts: dict[str, int] = {}
        names = ("scheduler", "dask", "watcher-0", "watcher-1", "consolidator", *self._nannies)
        self.ports = {name: free_port() for name in names}

    def __enter__(self) -> Self:
        self.ceph = CephS3(store="bluestore")
        self.ceph.__enter__()
        try:
            self.bucket = self.ceph.make_bucket("campaign")
            self.group = ServerGroup("faults")
            self._mount()
            self.proxy = Proxy(int(self.ceph.endpoint_url.rpartition(":")[2]), self._seed)
            self.proxy.__enter__()
            self._start_all()
        except BaseException as exc:
            self.__exit__(exc)
            raise
        self._supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        if hasattr(self, "proxy"):
            self.proxy.__exit__()
        if hasattr(self, "group"):
            if self.has_tmpfs:
                subprocess.run(["umount", "-l", str(self.scratch)], check=False)
            self.group.close()
        self.ceph.__exit__()

    @property
    def has(self) -> tuple[str, ...]:
        """Those things that faults may need and that this machine offers."""
        return (*(["tmpfs"] if self.has_tmpfs else []), *(["faketime"] if faketime() else []))

    @property
    def store(self) -> str:
        """The URL of the store."""
        return self.bucket.url

    @property
    def scheduler(self) -> str:
        """The address of the scheduler."""
        return f"tcp://127.0.0.1:{self.ports['scheduler']}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the processes. They reach S3 through the proxy."""
        client = {"connect_timeout": 3, "read_timeout": 8, "retries": {"max_attempts": 2}}
        return {
            "AWS_ACCESS_KEY_ID": self.ceph.access_key,
            "AWS_SECRET_ACCESS_KEY": self.ceph.secret_key,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_DEFAULT_REGION": "default",
            "DUMP_INGEST_STORE_OPTIONS": json.dumps({"config_kwargs": client}),
            "DUMP_INGEST_LOG_FORMAT": "json",
            "DUMP_INGEST_AFTER_COMMIT": self._after_commit,
            "DUMP_INGEST_POLL_S": "0.5",
            "DUMP_INGEST_SETTLE_S": "0.5",
            "DUMP_INGEST_QUIET_S": "3",
            "DUMP_INGEST_DRAIN_S": "5",
            "DUMP_INGEST_POOL": "true",
            "DUMP_INGEST_SCHEDULER_TIMEOUT_S": "10",
            "TMPDIR": str(self.scratch),
        }

    def stop(self, name: str) -> None:
        """End a service (SIGTERM) and do not restart it."""
        with self._lock:
            self._wanted.discard(name)
        if self.group.alive(name):
            self.group.signal(name, signal.SIGCONT)
            self.group.signal(name, signal.SIGTERM)

    def want(self, name: str) -> None:
        """Start a service, and restart it whenever it dies."""
        with self._lock:
            self._wanted.add(name)
            self.group.start(name, self._argv[name])

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to a service, or to the worker process of a nanny (`worker-0`)."""
        if name.startswith("worker"):
            nanny = self.group.pid(name.replace("worker", "nanny"))
            for pid in workers_of(nanny):
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)
        elif self.group.alive(name):
            self.group.signal(name, signum)

    def metric(self, name: str, metric: str) -> float | None:
        """Return the sum of a metric of a process over all labels.

        None means that the process does not answer or does not have the metric.
        """
        with suppress(OSError, ValueError):
            text = http_get(self.ports[name], "/metrics", timeout_s=2)[1].decode()
            values = re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
            return sum(map(float, values)) if values else None
        return None

    def steps(self, name: str) -> list[dict[str, Any]] | None:
        """Return a row for each step that a watcher knows, as `watch --explain --from` shows it.

        None means that the watcher does not answer.
        """
        with suppress(OSError, ValueError):
            rows: list[dict[str, Any]] = json.loads(http_get(self.ports[name], "/steps", timeout_s=5)[1])[
                "steps"
            ]
            return rows
        return None

    def begin_gc(self) -> None:
        """Start a `gc` that removes what crashes and new generations have left."""
        with self._lock:
            if not self.group.alive("gc"):
                self.group.start("gc", self._argv["gc"])

    def kill_gc(self) -> None:
        """Kill the `gc`, if it has not ended."""
        if self.group.alive("gc"):
            self.group.signal("gc", signal.SIGKILL)

    def set_clock(self, clocks: Sequence[Clock], shift_s: float) -> None:
        """Shift the clocks of some processes against the real time, in seconds."""
        for clock in clocks:
            (self.group.root / f"clock-{clock}").write_text(f"{shift_s:+.0f}\n")

    def _mount(self) -> None:
        self.scratch = self.group.root / "scratch"
        self.scratch.mkdir()
        size = f"size={SCRATCH_NBYTES}"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.scratch)], capture_output=True, check=False
        )
        self.has_tmpfs = mounted.returncode == 0

    def _start_all(self) -> None:
        self._argv = self._commands()
        self.want("scheduler")
        self.group.wait_for("scheduler", lambda: listens(self.ports["scheduler"]), timeout_s=60)
        for name in (*self._nannies, "watcher-0"):
            self.want(name)

    def _commands(self) -> dict[str, list[str]]:
        """Return the command line of each service."""
        plain, environments = self._environments()
        dask, dump_ingest = str(_BIN / "dask"), str(_BIN / "dump-ingest")
        address = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        loopback = ("--host", "127.0.0.1", "--dashboard-address")
        port = ("--port", str(self.ports["scheduler"]), "--preload", "workers.scheduler")
        commands = {
            "scheduler": [*environments["scheduler"], dask, "scheduler", *loopback, address["dask"], *port]
        }
        memory = ("--nthreads", "1", "--memory-limit", "1GiB", "--local-directory", str(self.scratch))
        others = ("--death-timeout", "60", "--preload", "workers.plugin", "--name")
        for name in self._nannies:
            words = (self.scheduler, *loopback, address[name], *memory, *others, name)
            commands[name] = [*environments["worker"], dask, "worker", *words]
        store = ("--store", self.store, "--scheduler", self.scheduler, "--metrics")
        for name, environment in (("watcher-0", environments["watcher"]), ("watcher-1", plain)):
            commands[name] = [*environment, dump_ingest, "watch", str(self.dump), *store, address[name]]
        follow = ("--follow", "--poll", "1", "--metrics", address["consolidator"])
        commands["consolidator"] = [
            *environments["consolidator"],
            dump_ingest,
            "consolidate",
            self.store,
            *follow,
        ]
        commands["gc"] = [*plain, dump_ingest, "gc", self.store, "--grace", f"{GC_GRACE_S}s", "--apply"]
        return commands

    def _environments(self) -> tuple[Sequence[str], Mapping[Clock, Sequence[str]]]:
        """Return a prefix for commands; and by clock, those that give a process a clock to be shifted."""
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("DUMP_INGEST_", "AWS_"))}
        plain = {**inherited, **self.environment}
        library = faketime()
        if library is None:
            return _env(plain), dict.fromkeys(CLOCKS, _env(plain))
        self.set_clock(CLOCKS, 0)
        shifted = {
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(Path(__file__).parent / "clock"),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "NO_FAKE_STAT": "1",
        }
        files = {clock: str(self.group.root / f"clock-{clock}") for clock in CLOCKS}
        return _env(plain), {
            clock: _env({**plain, **shifted, "FAKETIME_TIMESTAMP_FILE": path})
            for clock, path in files.items()
        }

    def _supervise(self) -> None:
        """Restart wanted services that have ended, as systemd does with `Restart=always`."""
        died_at: dict[str, float] = {}
        while not self._stop.wait(0.1):
            with self._lock:
                for name in self._wanted:
                    if self.group.alive(name):
                        died_at.pop(name, None)
                    elif time.monotonic() - died_at.setdefault(name, time.monotonic()) >= RESTART_S:
                        self.restarts[name] = self.restarts.get(name, 0) + 1
                        self.group.start(name, self._argv[name])
                        del died_at[name]


def workers_of(nanny: int) -> Iterator[int]:
    """Yield the process ids of the workers that a nanny supervises: at most one."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            ppid = int(status.read_text().rpartition(") ")[2].split()[1])
            if ppid == nanny and b"spawn_main" in (status.parent / "cmdline").read_bytes():
                yield int(status.parent.name)


def _env(variables: Mapping[str, str]) -> Sequence[str]:
    """Return the words to put before a command so that it gets exactly these variables."""
    return ("env", "-i", *(f"{name}={value}" for name, value in variables.items()))
