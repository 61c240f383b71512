"""Run a Dask scheduler and its workers as an operator does: as separate processes on known ports."""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.servers.process import LoopbackServer, answers, free_port, listens

_DASK = str(Path(sys.executable).with_name("dask"))
#: An idle event loop of Dask wakes fifty times per second to measure itself. It lives for the whole test run.
_RESTFUL = "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL=1s"


class DaskCluster(LoopbackServer):
    """One scheduler, and workers with one thread each, that run for the duration of the `with` block.

    `env` holds variables that the workers get in addition to those of this process, such as credentials.
    """

    def __init__(self, *, workers: int = 1, env: Mapping[str, str] | None = None) -> None:
        self._count = workers
        self._env = dict(env or {})

    @property
    def address(self) -> str:
        """The address of the scheduler, as `--scheduler` expects it."""
        return f"tcp://127.0.0.1:{self._port}"

    @property
    def metrics_ports(self) -> list[int]:
        """The port on which each worker serves `/metrics`."""
        return self._metrics_ports

    @property
    def scheduler_metrics_port(self) -> int:
        """The port on which the scheduler serves `/metrics`."""
        return self._scheduler_metrics_port

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of `scheduler` and `worker-{number}`."""
        names = ["scheduler", *(f"worker-{number}" for number in range(self._count))]
        return {name: self._servers.pid(name) for name in names}

    def kill_scheduler(self) -> None:
        """Kill the scheduler (SIGKILL). Its workers end on their own."""
        self._servers.signal("scheduler", signal.SIGKILL)

    def start_scheduler(self) -> None:
        """Start the scheduler at the same address as before, and return when it accepts connections."""
        address = ["--host", "127.0.0.1", "--port", str(self._port)]
        metrics = ["--dashboard-address", f"127.0.0.1:{self._scheduler_metrics_port}"]
        preload = ["--preload", "workers.scheduler"]
        self._servers.start("scheduler", ["env", _RESTFUL, _DASK, "scheduler", *address, *metrics, *preload])
        self._servers.wait_for("scheduler", lambda: listens(self._port), timeout_s=30)

    def kill_worker(self, number: int = 0) -> None:
        """Kill a worker (SIGKILL)."""
        self._servers.signal(f"worker-{number}", signal.SIGKILL)

    def pause_worker(self, number: int = 0) -> None:
        """Suspend a worker (SIGSTOP)."""
        self._servers.signal(f"worker-{number}", signal.SIGSTOP)

    def start_worker(self, number: int = 0) -> None:
        """Start a worker and return when it serves its metrics."""
        port = self._metrics_ports[number]
        options = {
            "--host": "127.0.0.1",
            "--dashboard-address": f"127.0.0.1:{port}",
            "--nthreads": "1",
            "--memory-limit": "0",
            "--death-timeout": "60",
            "--local-directory": str(self._servers.root),
            "--preload": "workers.plugin",
        }
        words = [word for option in options.items() for word in option]
        variables = [f"{name}={value}" for name, value in self._env.items()]
        self._servers.start(
            f"worker-{number}",
            ["env", _RESTFUL, *variables, _DASK, "worker", self.address, "--no-nanny", *words],
        )
        self._servers.wait_for(f"worker-{number}", lambda: answers(port, "/metrics"), timeout_s=60)

    def log_tail(self, name: str, lines: int = 20) -> str:
        """Return the end of the log of `scheduler` or `worker-{number}`."""
        return self._servers.log_tail(name, lines)

    def _bring_up(self, root: Path) -> None:
        del root
        self._port = free_port()
        self._scheduler_metrics_port = free_port()
        self._metrics_ports = [free_port() for _ in range(self._count)]
        self.start_scheduler()
        for number in range(self._count):
            self.start_worker(number)
