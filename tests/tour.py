"""The tour behind `make tour`: all that runs beside a training cluster, on loopback, without containers.

A writer plays the training job; a watcher, a Dask scheduler, two workers and a consolidator take its dump
in; Prometheus, where it is installed, scrapes them, with the rules of deploy/prometheus. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.servers.process import ServerError, ServerGroup, answers, free_port, http_get, listens

ROOT = Path(__file__).parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DIRECTORY = Path("tour")
BIN = Path(sys.executable).parent
#: Who does something of their own with SIGTERM, in the order in which they are asked to end.
_GRACEFUL = ("writer", "watcher", "consolidator")
_PORTS = {"scheduler": 8786, "dask": 8787, "worker-0": 8790, "worker-1": 8791, "watcher": 9108} | {
    "consolidator": 9109,
    "prometheus": 9090,
}


class Tour:
    """The processes, each on the port that it usually has, or on another where that is taken."""

    def __init__(self, group: ServerGroup, directory: Path, *, every_s: float, healthy: int) -> None:
        self._group = group
        self.dump, self.store = directory / "dump", directory / "run.zarr"
        self._every_s, self._healthy = every_s, healthy
        self.ports = {name: _free(port) for name, port in _PORTS.items()}
        self.has_prometheus = shutil.which("prometheus") is not None

    def start(self) -> None:
        """Start everything, and return when all of it answers."""
        at = self.ports
        self.dump.mkdir(parents=True)
        scheduler = f"tcp://127.0.0.1:{at['scheduler']}"
        self._dask("scheduler", "--port", str(at["scheduler"]), dashboard=at["dask"])
        for worker in ("worker-0", "worker-1"):
            options = ("--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--preload", "workers.plugin")
            local = ("--local-directory", str(self._group.root))
            self._dask("worker", scheduler, *options, *local, dashboard=at[worker], name=worker)
        store = ("--store", str(self.store))
        metrics = f"127.0.0.1:{at['watcher']}"
        words = (
            "watch",
            str(self.dump),
            *store,
            "--scheduler",
            scheduler,
            "--metrics",
            metrics,
            "--quiet",
            "4",
        )
        self._own("watcher", *words)
        metrics = f"127.0.0.1:{at['consolidator']}"
        self._own(
            "consolidator", "consolidate", str(self.store), "--follow", "--poll", "2", "--metrics", metrics
        )
        if self.has_prometheus:
            self._prometheus()
        writer = ("--every", str(self._every_s), "--healthy", str(self._healthy))
        self._group.start("writer", [sys.executable, "-m", "tests.tour_writer", str(self.dump), *writer])
        for name in ("worker-0", "worker-1", "watcher", "consolidator"):
            self._group.wait_for(name, partial(answers, at[name], "/metrics"), timeout_s=60)
        self._group.wait_for("scheduler", partial(answers, at["dask"], "/metrics"), timeout_s=60)

    def check(self) -> None:
        """Raise ServerError when something has ended that should run."""
        for name in ("scheduler", "worker-0", "worker-1", "watcher", "consolidator", "writer"):
            if not self._group.alive(name):
                raise ServerError(f"the {name} has ended\n{self._group.log_tail(name)}")

    def stop(self) -> None:
        """Let those end that have something to finish; the rest ends with the group."""
        for name in _GRACEFUL:
            if self._group.alive(name):
                self._group.signal(name, signal.SIGTERM)
                deadline = time.monotonic() + 20
                while self._group.alive(name) and time.monotonic() < deadline:
                    time.sleep(0.05)

    def committed(self) -> dict[str, int]:
        """Return the newest committed step of each rank, from the metrics of the watcher."""
        found = {}
        with suppress(OSError):
            for line in http_get(self.ports["watcher"], "/metrics")[1].decode().splitlines():
                if line.startswith("dump_ingest_watcher_committed_step{"):
                    labels, _, value = line.rpartition(" ")
                    found[labels.split('"')[1]] = int(float(value))
        return found

    def invitation(self) -> str:
        """Say what there is to look at."""
        at, store = self.ports, self.store
        prometheus = "  (Prometheus is not installed: make servers)"
        if self.has_prometheus:
            # Debian's Prometheus 2 has only the pages that others keep there.
            pages = "/classic" if answers(at["prometheus"], "/classic/alerts") else ""
            page = f"http://127.0.0.1:{at['prometheus']}{pages}"
            prometheus = f"""\
  {page}/alerts         alerts, with the rules of deploy/prometheus
  {page}/graph?g0.expr=dump_ingest_watcher_committed_step&g0.tab=0"""
        return f"""
{prometheus}
  http://127.0.0.1:{at["watcher"]}/metrics        the watcher
  http://127.0.0.1:{at["consolidator"]}/metrics        the consolidator, with what its rules find
  http://127.0.0.1:{at["worker-0"]}/metrics        a Dask worker; another at {at["worker-1"]}
  http://127.0.0.1:{at["dask"]}/metrics        the Dask scheduler

In another terminal (`. .venv/bin/activate` first), once step {self._healthy + 2} is there:

  dump-ingest ls {store}                 all steps
  dump-ingest origin {store}             which rank, step and operator was first to go wrong
  dump-ingest find {store} --where "nan_count > 0" --rank 1
  dump-ingest doctor {self.dump} --store {store} --scheduler tcp://127.0.0.1:{at["scheduler"]}

Up to step {self._healthy} all is well. Ctrl-C ends the tour; the store stays.
"""

    def _dask(self, role: str, *words: str, dashboard: int, name: str = "") -> None:
        common = ("--host", "127.0.0.1", "--dashboard-address", f"127.0.0.1:{dashboard}")
        self._group.start(name or role, [str(BIN / "dask"), role, *words, *common])
        if role == "scheduler":
            self._group.wait_for(role, lambda: listens(self.ports["scheduler"]), timeout_s=60)

    def _own(self, name: str, *words: str) -> None:
        self._group.start(name, [str(BIN / "dump-ingest"), *words])

    def _prometheus(self) -> None:
        at = self.ports
        jobs = {
            "watcher": ["watcher"],
            "consolidator": ["consolidator"],
            "scheduler": ["dask"],
            "worker": ["worker-0", "worker-1"],
        }
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": f"dump-ingest-{job}",
                    "static_configs": [{"targets": [f"127.0.0.1:{at[name]}" for name in names]}],
                }
                for job, names in jobs.items()
            ],
        }
        path = self._group.root / "prometheus.yml"
        path.write_text(json.dumps(config))
        data = f"--storage.tsdb.path={self._group.root / 'prometheus'}"
        listen = f"--web.listen-address=127.0.0.1:{at['prometheus']}"
        self._group.start("prometheus", ["prometheus", f"--config.file={path}", data, listen])
        self._group.wait_for("prometheus", lambda: answers(at["prometheus"], "/-/ready"), timeout_s=30)


def _free(port: int) -> int:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return port
    return free_port()


def main() -> int:
    """Run the tour until Ctrl-C, or for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long; default: until Ctrl-C")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="what is there is removed")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="from step to step")
    parser.add_argument("--healthy", type=int, default=6, metavar="STEPS", help="before it goes wrong")
    chosen = parser.parse_args()
    shutil.rmtree(chosen.directory, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith(("DUMP_INGEST_", "AWS_"))]:
        del os.environ[name]  # the tour is for a newcomer, and has settings of its own
    # Also where a shell has started it in the background, which has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    print("Starting ...", flush=True)
    with ServerGroup("tour") as group:
        tour = Tour(group, chosen.directory, every_s=chosen.every, healthy=chosen.healthy)
        try:
            tour.start()
            print(tour.invitation(), flush=True)
            _look_on(tour, chosen.seconds)
        except KeyboardInterrupt:
            print("\nEnding ...", flush=True)
        except ServerError as exc:
            print(exc, file=sys.stderr)
            return 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tour.stop()
    print(f"The store is {chosen.directory / 'run.zarr'}.")
    return 0


def _look_on(tour: Tour, seconds: float) -> None:
    ends, before = time.monotonic() + seconds, ""
    while time.monotonic() < ends:
        tour.check()
        said = ", ".join(f"rank {rank} step {step}" for rank, step in sorted(tour.committed().items()))
        if said != before:
            print(f"  in the store: {said}", flush=True)
        before = said
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
