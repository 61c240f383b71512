"""Run servers on loopback that end with the test run, even if it is killed."""

import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

START_TRIES = 3


class ServerError(RuntimeError):
    """A server did not start, or one of its tools failed. The message ends with the last lines it printed."""


class ServerGroup:
    """Processes that end together, with their directory `root`, on `close` or when this process is killed.

    Every server joins the process group of a guard, a shell that waits for the end of a pipe. The pipe ends
    when this process ends, for whatever reason, and the guard then kills the group. (A parent-death signal
    would not work: it fires when the *thread* that started the server ends.)
    """

    def __init__(self, name: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; rm -rf "$0"; kill -KILL 0', str(self.root)],
            stdin=subprocess.PIPE,
            process_group=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, name: str, argv: list[str]) -> None:
        """Start a server, unless it runs; `log_tail` returns what it prints."""
        if self.alive(name):
            return
        with self._log(name).open("ab") as log:
            self._servers[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._guard.pid,
            )

    def alive(self, name: str) -> bool:
        """Return whether the server was started and has not ended."""
        server = self._servers.get(name)
        return server is not None and server.poll() is None

    def pid(self, name: str) -> int:
        """Return the process id of a server."""
        return self._servers[name].pid

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to a server. For SIGKILL, return when the server has ended."""
        self._servers[name].send_signal(signum)
        if signum is signal.SIGKILL:
            self._servers[name].wait()

    def wait_for(self, name: str, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until `ready` is true. Raise ServerError if the server ends first or `timeout_s` passes."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.alive(name):
                code = self._servers[name].returncode
                raise ServerError(f"{name} ended with {code}\n{self.log_tail(name)}")
            if time.monotonic() > deadline:
                raise ServerError(f"{name} was not ready within {timeout_s:g} s\n{self.log_tail(name)}")
            time.sleep(0.02)

    def logs(self) -> list[Path]:
        """Return the log files of all servers."""
        return sorted(self.root.glob("*.log"))

    def log_tail(self, name: str, lines: int = 20) -> str:
        """Return the last lines that the server printed."""
        text = self._log(name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """Kill every server immediately."""
        with suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        for process in (*self._servers.values(), self._guard):
            process.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _log(self, name: str) -> Path:
        return self.root / f"{name}.log"


class LoopbackServer(ABC):
    """A server of one or more processes that runs for the duration of the `with` block."""

    _servers: ServerGroup

    def __enter__(self) -> Self:
        for tries_left in reversed(range(START_TRIES)):
            self._servers = ServerGroup(type(self).__name__.lower())
            try:
                self._bring_up(self._servers.root)
            except BaseException as exc:
                self._servers.close()
                # Another process may have taken one of its ports: the next attempt picks others.
                if not isinstance(exc, ServerError) or not tries_left:
                    raise
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    @abstractmethod
    def _bring_up(self, root: Path) -> None:
        """Configure the server in the empty directory `root`, on free ports, and start it.

        Raises:
            ServerError: it does not start. `__enter__` then tries again with other ports.
        """


def free_port() -> int:
    """Return a loopback port on which nothing listens.

    The port lies below the range for outgoing connections. Inside that range, a client that keeps calling a
    dead server would sooner or later be assigned the server's port and connect to itself.
    """
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def run_tool(argv: list[str], *, stdin: str = "", timeout_s: float = 30) -> str:
    """Run a command to its end and return what it printed. Raise ServerError if it fails."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except subprocess.CalledProcessError as exc:
        raise ServerError(f"{' '.join(argv)} ended with {exc.returncode}\n{exc.stdout}{exc.stderr}") from exc
    except subprocess.TimeoutExpired as exc:
        raise ServerError(f"{' '.join(argv)} took over {timeout_s:g} s") from exc
    return done.stdout


def http_get(
    port: int, path: str, *, timeout_s: float = 5, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Return the status and the body of a page of a server on loopback."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()


def scrape(port: int) -> str:
    """Return the metrics of a process on loopback, asked for as Prometheus does."""
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
    return http_get(port, "/metrics", timeout_s=10, headers=headers)[1].decode()


def listens(port: int) -> bool:
    """Return whether a server accepts connections on a loopback port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def answers(port: int, path: str) -> bool:
    """Return whether a server on loopback answers this path with status 200."""
    try:
        return http_get(port, path, timeout_s=1)[0] == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
