"""Run the `dump-ingest` command as users do: as a process, or within this one where that does not matter."""

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import structlog

from ingest.cli import main

# Run the `dump-ingest` command as users do: as a process with arguments, environment and exit code.


PROGRAM = str(Path(sys.executable).with_name("dump-ingest"))

#: Settings for dumps that are already complete: without any waiting.
PROMPT = {
    "DUMP_INGEST_QUIET_S": "0",
    "DUMP_INGEST_SETTLE_S": "0",
    "DUMP_INGEST_POLL_S": "0.1",
    "DUMP_INGEST_SCHEDULER_TIMEOUT_S": "20",
    "DUMP_INGEST_WORKERS": "1",
    "DUMP_INGEST_METRICS": "",
    "DUMP_INGEST_CONSOLIDATOR_METRICS": "",
}


@dataclass(frozen=True, slots=True)
class Finished:
    """One run of the command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Its standard output, which must be strict JSON and nothing else."""
        return strict_json(self.stdout)


class Answer(Protocol):
    """Runs the command within this process (a fixture of its tests); it must exit with `code`."""

    def __call__(self, *words: object, code: int = 0) -> Finished: ...


def strict_json(text: str) -> Any:
    """Parse JSON. Raise ValueError for NaN and Infinity, which Python accepts but JSON does not have."""

    def refuse(constant: str) -> None:
        message = f"{constant} is not JSON"
        raise ValueError(message)

    return json.loads(text, parse_constant=refuse)


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a run: this process' own, without settings, plus `PROMPT` and `env`.

    Left out are the variables that would configure the command: `DUMP_INGEST_*` and `AWS_*`.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("DUMP_INGEST_", "AWS_"))
    }
    return {**inherited, **PROMPT, **(env or {})}


def run(
    *args: object,
    code: int = 0,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    prefix: Sequence[str] = (),
    timeout_s: float = 90,
) -> Finished:
    """Run the command to its end. Fail unless it exits with `code` and without a traceback."""
    done = subprocess.run(
        [*prefix, PROGRAM, *map(str, args)],
        env=environment(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    transcript = f"{' '.join(map(str, args))}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == code, transcript
    assert "Traceback" not in done.stdout + done.stderr, transcript
    return Finished(done.returncode, done.stdout, done.stderr)


@dataclass
class Running:
    """The command while it runs, and what it has written to stderr so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    """The lines of stderr."""

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """All of stderr so far."""
        return "\n".join(self.lines)

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the JSON log lines, of the event `name` or of all events."""
        events = [strict_json(line) for line in list(self.lines) if line.startswith("{")]
        return [event for event in events if not name or event["event"] == name]

    def wait_until(
        self, ready: Callable[[], object], *, timeout_s: float = 30, pause_s: float = 0.005
    ) -> None:
        """Wait until `ready` returns true. Fail if the command ends first or `timeout_s` passes."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert self.alive, f"ended with {self.process.returncode}\n{self.said}"
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s\n{self.said}"
            time.sleep(pause_s)

    def finish(self, *, timeout_s: float = 60) -> int:
        """Wait for its end and return the exit code. Fail if it printed a traceback."""
        code = self.process.wait(timeout_s)
        time.sleep(0.05)  # lets the thread read the last lines
        assert "Traceback" not in self.said, self.said
        return code

    def terminate(self, *, timeout_s: float = 60) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.finish(timeout_s=timeout_s)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()


@contextmanager
def start(
    *args: object, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[Running]:
    """Start the command, and kill it at the end of the `with` block if it still runs."""
    process = subprocess.Popen(
        [*prefix, PROGRAM, *map(str, args)],
        env=environment({"DUMP_INGEST_LOG_FORMAT": "json", **(env or {})}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Running(process)

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            running.lines.append(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield running
    finally:
        running.kill()
        reader.join(10)
        assert process.stderr is not None
        process.stderr.close()


def own_workers(parent: int) -> list[int]:
    """Return the process ids of the workers that a command has started for itself.

    Those of `ingest` are copies of the command, and those of `watch` are new interpreters.
    """
    pids = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            ppid = int(status.read_text().rpartition(") ")[2].split()[1])
            if ppid == parent and b"resource_tracker" not in (status.parent / "cmdline").read_bytes():
                pids.append(int(status.parent.name))
    return pids


# Within this process: for tests to which it does not matter, this saves the second that a process takes to
# import everything. What a test checks of signals, of other users, of processes and their memory, or of a
# scheduler needs `run`.


def run_here(
    *args: object, code: int = 0, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Finished:
    """Run the command to its end, as `run` does. Fail unless it exits with `code`."""
    done = end_here(*args, env=env, cwd=cwd)
    transcript = f"{' '.join(map(str, args))}\nexit code {done.code}\n{done.stdout}\n{done.stderr}"
    assert done.code == code, transcript
    assert "Traceback" not in done.stdout + done.stderr, transcript
    return done


def end_here(*args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Finished:
    """Run the command to its end, whatever that is."""
    out, err = _text_file(), _text_file()
    with (
        patch.dict(os.environ, environment(env), clear=True),
        patch.object(sys, "argv", ["dump-ingest", *map(str, args)]),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _as_it_was(),
    ):
        try:
            main()
            ended = 0
        except SystemExit as end:
            ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Finished(ended, _content(out), _content(err))


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Leave signal handlers and logs of this process as they were: a command that writes configures them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    root_handlers = list(root.handlers)
    loggers = [root, *(item for item in root.manager.loggerDict.values() if isinstance(item, logging.Logger))]
    levels = [logger.level for logger in loggers]
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        root.handlers[:] = root_handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        structlog.reset_defaults()


def _text_file() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)


def _content(file: io.TextIOWrapper) -> str:
    file.seek(0)
    return file.read()
