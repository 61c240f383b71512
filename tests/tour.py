"""The program behind `make tour`: everything that runs next to a training cluster, without containers.

A writer plays the training job. A watcher, a Dask scheduler, two workers and a consolidator ingest its dump.
Prometheus, if it is installed, scrapes them and evaluates the rules of deploy/prometheus. All of them listen
on loopback. Ctrl-C ends the tour.
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
#: The processes that shut down gracefully on SIGTERM, in the order in which they are asked to end.
_GRACEFUL = ("writer", "watcher", "consolidator")
_PORTS = {"scheduler": 8786, "dask": 8787, "worker-0": 8790, "worker-1": 8791, "watcher": 9108} | {
    "consolidator": 9109,
    "prometheus": 9090,
}


class Tour:
    """The processes, each on its usual port, or on another port if that one is taken."""

    def __init__(self, group: ServerGroup, directory: Path, *, every_s: float, healthy: int) -> None:
        self._group = group
        self.dump, self.store = directory / "dump", directory / "run.zarr"
        self._every_s, self._healthy = every_s, healthy
        self.ports = {name: _free(port) for name, port in _PORTS.items()}
        self.has_prometheus = shutil.which("prometheus") is not None

    def start(self) -> None:
        """Start everything, and return when every process answers requests."""
        ports = self.ports
        self.dump.mkdir(parents=True)
        scheduler = f"tcp://127.0.0.1:{ports['scheduler']}"
        self._dask("scheduler", "--port", str(ports["scheduler"]), dashboard=ports["dask"])
        for worker in ("worker-0", "worker-1"):
            options = ("--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--preload", "workers.plugin")
            local = ("--local-directory", str(self._group.root))
            self._dask("worker", scheduler, *options, *local, dashboard=ports[worker], name=worker)
        into = ("--store", str(self.store), "--scheduler", scheduler)
        metrics = ("--metrics", f"127.0.0.1:{ports['watcher']}")
        self._dump_ingest("watcher", "watch", str(self.dump), *into, *metrics, "--quiet", "4")
        metrics = ("--metrics", f"127.0.0.1:{ports['consolidator']}")
        follow = ("--follow", "--poll", "2")
        self._dump_ingest("consolidator", "consolidate", str(self.store), *follow, *metrics)
        if self.has_prometheus:
            self._prometheus()
        writer = ("--every", str(self._every_s), "--healthy", str(self._healthy))
        self._group.start("writer", [sys.executable, "-m", "tests.tour_writer", str(self.dump), *writer])
        for name in ("worker-0", "worker-1", "watcher", "consolidator"):
            self._group.wait_for(name, partial(answers, ports[name], "/metrics"), timeout_s=60)
        self._group.wait_for("scheduler", partial(answers, ports["dask"], "/metrics"), timeout_s=60)

    def check(self) -> None:
        """Raise ServerError if a process has ended that should still run."""
        for name in ("scheduler", "worker-0", "worker-1", "watcher", "consolidator", "writer"):
            if not self._group.alive(name):
                raise ServerError(f"the {name} has ended\n{self._group.log_tail(name)}")

    def stop(self) -> None:
        """End the processes that have work to finish. The group ends the others."""
        for name in _GRACEFUL:
            if self._group.alive(name):
                self._group.signal(name, signal.SIGTERM)
                deadline = time.monotonic() + 20
                while self._group.alive(name) and time.monotonic() < deadline:
                    time.sleep(0.05)

    def committed(self) -> dict[str, int]:
        """Return the newest committed step of each rank, from the metrics of the watcher."""
        newest = {}
        with suppress(OSError):
            for line in http_get(self.ports["watcher"], "/metrics")[1].decode().splitlines():
                if line.startswith("dump_ingest_watcher_committed_step{"):
                    labels, _, value = line.rpartition(" ")
                    newest[labels.split('"')[1]] = int(float(value))
        return newest

    def invitation(self) -> str:
        """Return a text that lists the pages to open and the commands to try."""
        ports, store = self.ports, self.store
        prometheus = "  (Prometheus is not installed: make servers)"
        if self.has_prometheus:
            # Prometheus 2 serves its classic pages there, and Debian's build of it has no other pages.
            pages = "/classic" if answers(ports["prometheus"], "/classic/alerts") else ""
            page = f"http://127.0.0.1:{ports['prometheus']}{pages}"
            prometheus = f"""\
  {page}/alerts         alerts, with the rules of deploy/prometheus
  {page}/graph?g0.expr=dump_ingest_watcher_committed_step&g0.tab=0"""
        return f"""
{prometheus}
  http://127.0.0.1:{ports["watcher"]}/metrics        the watcher
  http://127.0.0.1:{ports["consolidator"]}/metrics        the consolidator, with the findings of rules
  http://127.0.0.1:{ports["worker-0"]}/metrics        a Dask worker; the other: port {ports["worker-1"]}
  http://127.0.0.1:{ports["dask"]}/metrics        the Dask scheduler

In another terminal (`. .venv/bin/activate` first), once step {self._healthy + 2} is in the store:

  dump-ingest serve {store} --open --watchers 127.0.0.1:{ports["watcher"]}
                                         the page, on loopback: incidents, ranks by steps, tensors
  dump-ingest ls {store}                 all steps
  dump-ingest origin {store}             the rank, step and operator where the NaN came from
  dump-ingest find {store} --where "nan_count > 0" --rank 1
  dump-ingest doctor {self.dump} --store {store} --scheduler tcp://127.0.0.1:{ports["scheduler"]}

The first {self._healthy} steps are healthy; all later ones contain NaN.
Ctrl-C ends the tour; the store stays.
"""

    def _dask(self, role: str, *words: str, dashboard: int, name: str = "") -> None:
        common = ("--host", "127.0.0.1", "--dashboard-address", f"127.0.0.1:{dashboard}")
        self._group.start(name or role, [str(BIN / "dask"), role, *words, *common])
        if role == "scheduler":
            self._group.wait_for(role, lambda: listens(self.ports["scheduler"]), timeout_s=60)

    def _dump_ingest(self, name: str, *words: str) -> None:
        self._group.start(name, [str(BIN / "dump-ingest"), *words])

    def _prometheus(self) -> None:
        ports = self.ports
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
                    "static_configs": [{"targets": [f"127.0.0.1:{ports[name]}" for name in names]}],
                }
                for job, names in jobs.items()
            ],
        }
        path = self._group.root / "prometheus.yml"
        path.write_text(json.dumps(config))
        data = f"--storage.tsdb.path={self._group.root / 'prometheus'}"
        listen = f"--web.listen-address=127.0.0.1:{ports['prometheus']}"
        self._group.start("prometheus", ["prometheus", f"--config.file={path}", data, listen])
        self._group.wait_for("prometheus", lambda: answers(ports["prometheus"], "/-/ready"), timeout_s=30)


def _free(port: int) -> int:
    """Return the port if it is free, otherwise another one that is."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return port
    return free_port()


def main() -> int:
    """Run the tour until Ctrl-C, or for `--seconds`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="duration of the tour; default: until Ctrl-C"
    )
    parser.add_argument(
        "--directory", type=Path, default=DIRECTORY, help="for dump and store; removed first if it exists"
    )
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="SECONDS", help="time from one step to the next"
    )
    parser.add_argument(
        "--healthy", type=int, default=6, metavar="STEPS", help="number of steps before the NaN appears"
    )
    chosen = parser.parse_args()
    shutil.rmtree(chosen.directory, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith(("DUMP_INGEST_", "AWS_"))]:
        del os.environ[name]  # the tour has its own settings; those of the user must not change it
    # A shell that starts the tour in the background makes it ignore SIGINT; undo that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    print("Starting ...", flush=True)
    with ServerGroup("tour") as group:
        tour = Tour(group, chosen.directory, every_s=chosen.every, healthy=chosen.healthy)
        try:
            tour.start()
            print(tour.invitation(), flush=True)
            _report_progress(tour, chosen.seconds)
        except KeyboardInterrupt:
            print("\nEnding ...", flush=True)
        except ServerError as exc:
            print(exc, file=sys.stderr)
            return 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tour.stop()
    print(f"The store is {chosen.directory / 'run.zarr'}.")
    return 0


def _report_progress(tour: Tour, seconds: float) -> None:
    """Print the newest step of each rank whenever it changes."""
    deadline, before = time.monotonic() + seconds, ""
    while time.monotonic() < deadline:
        tour.check()
        newest = ", ".join(f"rank {rank} step {step}" for rank, step in sorted(tour.committed().items()))
        if newest != before:
            print(f"  in the store: {newest}", flush=True)
        before = newest
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
