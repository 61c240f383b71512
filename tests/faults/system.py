"""The real system on loopback, each part a process of its own, and a supervisor that starts what has died."""

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
from typing import Self

from tests.faults.proxy import Proxy
from tests.servers.ceph import CephS3
from tests.servers.process import ServerGroup, free_port, http_get, listens

_BIN = Path(sys.executable).parent
_FAKETIME = [
    Path(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1") for machine in ("x86_64", "aarch64")
]
#: How long a service stays dead: systemd's `RestartSec` would be 5 s in deploy/systemd; here it is sooner.
RESTART_S = 1.0
SCRATCH_NBYTES = 16 * 2**20


def faketime() -> Path | None:
    """Return the library that lets a process live at another time, if it is installed."""
    return next((path for path in _FAKETIME if path.exists()), None)


class Group(ServerGroup):
    """Servers of which a test may ask the process ids, and may read all that they said."""

    def pid(self, name: str) -> int:
        """Return the process id of a server that was started."""
        return self._servers[name].pid

    def logs(self) -> list[Path]:
        """Return the files with what each has printed."""
        return sorted(self.root.glob("*.log"))


class System:
    """Ceph, a proxy before it, Dask, watchers and consolidator, as long as the `with` block lasts."""

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
            self.group = Group("faults")
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
        """What kinds of faults may need, and this machine has."""
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
        """What our processes find in their environment. They reach S3 through the proxy."""
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
            "DUMP_INGEST_SCHEDULER_TIMEOUT_S": "10",
            "TMPDIR": str(self.scratch),
        }

    def stop(self, name: str) -> None:
        """Do not start a service again, and end it."""
        with self._lock:
            self._wanted.discard(name)
        if self.group.alive(name):
            self.group.signal(name, signal.SIGCONT)
            self.group.signal(name, signal.SIGTERM)

    def want(self, name: str) -> None:
        """Have a service running from now on."""
        with self._lock:
            self._wanted.add(name)
            self.group.start(name, self._argv[name])

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to a service of ours, or to the worker of a nanny (`worker-0`)."""
        if name.startswith("worker"):
            nanny = self.group.pid(name.replace("worker", "nanny"))
            for pid in worker_of(nanny):
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)
        elif self.group.alive(name):
            self.group.signal(name, signum)

    def metric(self, name: str, metric: str) -> float | None:
        """Return the sum of a metric of a process over its labels; None where it does not answer."""
        with suppress(OSError, ValueError):
            text = http_get(self.ports[name], "/metrics", timeout_s=2)[1].decode()
            found = re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
            return sum(map(float, found)) if found else None
        return None

    def set_clock(self, shift_s: float) -> None:
        """Let watcher and workers live at another time."""
        (self.group.root / "clock").write_text(f"{shift_s:+.0f}\n")

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
        """Return how each service is started."""
        plain, faked = self._environments()
        at, dask, own = self.ports, str(_BIN / "dask"), str(_BIN / "dump-ingest")
        address = {name: f"127.0.0.1:{port}" for name, port in at.items()}
        loopback = ("--host", "127.0.0.1", "--dashboard-address")
        port = ("--port", str(at["scheduler"]))
        kept = ("--preload", "workers.scheduler")
        found = {"scheduler": [*plain, dask, "scheduler", *loopback, address["dask"], *port, *kept]}
        memory = ("--nthreads", "1", "--memory-limit", "1GiB", "--local-directory", str(self.scratch))
        others = ("--death-timeout", "60", "--preload", "workers.plugin", "--name")
        for name in self._nannies:
            words = (self.scheduler, *loopback, address[name], *memory, *others, name)
            found[name] = [*faked, dask, "worker", *words]
        store = ("--store", self.store, "--scheduler", self.scheduler, "--metrics")
        for name, environment in (("watcher-0", faked), ("watcher-1", plain)):
            found[name] = [*environment, own, "watch", str(self.dump), *store, address[name]]
        follow = ("--follow", "--poll", "1", "--metrics", address["consolidator"])
        found["consolidator"] = [*plain, own, "consolidate", self.store, *follow]
        return found

    def _environments(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return what to put before a command: as it is, and for a process whose clock can be set."""
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("DUMP_INGEST_", "AWS_"))}
        plain = {**inherited, **self.environment}
        library = faketime()
        if library is None:
            return _env(plain), _env(plain)
        self.set_clock(0)
        clock = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self.group.root / "clock"),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "NO_FAKE_STAT": "1",
        }
        return _env(plain), _env({**plain, **clock})

    def _supervise(self) -> None:
        """Start again what has ended: what systemd does with `Restart=always`."""
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


def worker_of(nanny: int) -> Iterator[int]:
    """Yield the process that a nanny looks after."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            above = int(status.read_text().rpartition(") ")[2].split()[1])
            if above == nanny and b"spawn_main" in (status.parent / "cmdline").read_bytes():
                yield int(status.parent.name)


def _env(variables: Mapping[str, str]) -> Sequence[str]:
    return ("env", "-i", *(f"{name}={value}" for name, value in variables.items()))
