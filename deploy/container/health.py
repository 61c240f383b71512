#!/usr/bin/env python3
"""Checks the health of the process in this container; exits with 0, or with 1 and the reason.

- `dask scheduler` and `dask worker` must answer at `/health` of their dashboard port.
- `dump-ingest watch` and `dump-ingest consolidate --follow` must serve their metrics, with a heartbeat that
  is younger than `STALE_S`.
- Any other process only has to run: if it cannot go on, it ends, and the container with it.

Process 1 may be an init (`docker run --init`, tini) or a shell: then the command is that of its children.
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

#: Without a heartbeat for that long, a process hangs. A look at a very large dump beats for each directory.
STALE_S = 600
_TIMEOUT_S = 5
_HEARTBEAT = "dump_ingest_heartbeat_timestamp_seconds"
_DASHBOARDS = {"scheduler": "8787", "worker": "8790"}
_PROC = Path("/proc")


def main() -> int:
    """Check process 1, or the process whose id is on the command line."""
    pid = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    try:
        reason = problem_of(command_of(pid))
    except (OSError, ValueError, urllib.error.URLError) as exc:
        reason = f"{type(exc).__name__}: {exc}"
    if reason:
        sys.stderr.write(f"{reason}\n")
    return 1 if reason else 0


def command_of(pid: int) -> Sequence[str]:
    """Return the command with a role of a process, or of the nearest process that it has started.

    Without a role among them, return the command of the process itself.
    """
    own = _words(pid)
    generation = [pid]
    while generation:
        for candidate in generation:
            words = _program(_words(candidate))
            if words and words[0] in {"dask", "dump-ingest"}:
                return words
        generation = [child for parent in generation for child in _children(parent)]
    return own


def problem_of(words: Sequence[str]) -> str:
    """Return what is wrong with a running command; "" if nothing is."""
    match _program(words):
        case ["dask", ("scheduler" | "worker") as role, *options]:
            dashboard = _option(options, "--dashboard-address") or _DASHBOARDS[role]
            _get(f"http://{_local(dashboard)}/health")
        case ["dump-ingest", "watch", *options]:
            return _stale(_metrics(options, "metrics"))
        case ["dump-ingest", "consolidate", *options] if {"--follow", "-f"} & {*options}:
            return _stale(_metrics(options, "consolidator_metrics"))
    return ""


def _program(words: Sequence[str]) -> list[str]:
    """Return a command without the interpreter, and without the directory of the program."""
    match [Path(words[0]).name, *words[1:]] if words else []:
        case [interpreter, *command] if interpreter.startswith("python") and command:
            return _program(command)
        case program:
            return program


def _words(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started or taken over, in the order of their ids."""
    for candidate in sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        try:
            status = (_PROC / str(candidate) / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name of the program is in parentheses, and may have some itself.
        if int(status.rpartition(")")[2].split()[1]) == pid:
            yield candidate


def _metrics(options: Sequence[str], setting: str) -> str:
    address = _option(options, "--metrics") or _setting(setting, options)
    return _get(f"http://{_local(address)}/metrics") if address else ""


def _setting(name: str, options: Sequence[str]) -> str:
    from ingest.settings import load  # deferred: pydantic takes 0.1 s to import, in each health check

    config = _option(options, "--config") or _option(options, "-c")
    return getattr(load(Path(config) if config else None).settings, name) or ""


def _stale(metrics: str) -> str:
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        if name == _HEARTBEAT and float(value) < time.time() - STALE_S:
            return f"hangs: it has made no progress for {time.time() - float(value):.0f} s"
    return ""


def _option(options: Sequence[str], name: str) -> str:
    for word, value in zip(options, [*options[1:], ""], strict=False):
        if word == name:
            return value
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def _local(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{'127.0.0.1' if host in {'', '0.0.0.0', '[::]'} else host}:{port}"  # noqa: S104


def _get(url: str) -> str:
    # Without the proxy of the environment: this is a local connection.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        body: bytes = answer.read()
        return body.decode()


if __name__ == "__main__":
    sys.exit(main())
