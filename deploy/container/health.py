#!/usr/bin/env python3
"""Checks the health of the process in this container; exits with 0, or with 1 and the reason.

- `dask scheduler` and `dask worker` must answer at `/health` of their dashboard port.
- `dump-ingest watch` and `dump-ingest consolidate --follow` must answer at `/live` beside their metrics.
- Any other process only has to run: if it cannot go on, it ends, and the container with it.

Process 1 may be an init (`docker run --init`, tini) or a shell: then the command is that of its children.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

_TIMEOUT_S = 5
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
            return _problem_at(dashboard, "/health")
        case ["dump-ingest", "watch", *options]:
            return _problem_at(_address(options, "metrics"), "/live")
        case ["dump-ingest", "consolidate", *options] if {"--follow", "-f"} & {*options}:
            return _problem_at(_address(options, "consolidator_metrics"), "/live")
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
    for candidate in sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        try:
            status = (_PROC / str(candidate) / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name of the program is in parentheses, and may have some itself.
        if int(status.rpartition(")")[2].split()[1]) == pid:
            yield candidate


def _address(options: Sequence[str], setting: str) -> str:
    """Return where a command serves its metrics; "" for nowhere."""
    if given := _option(options, "--metrics"):
        return given
    from ingest.settings import load  # deferred: pydantic takes 0.1 s to import, in each health check

    config = _option(options, "--config") or _option(options, "-c")
    return getattr(load(Path(config) if config else None).settings, setting) or ""


def _option(options: Sequence[str], name: str) -> str:
    for word, value in zip(options, [*options[1:], ""], strict=False):
        if word == name:
            return value
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def _problem_at(address: str, path: str) -> str:
    """Return why a process that listens at an address is not well; "" if it is, or without an address."""
    if not address:
        return ""
    host, _, port = address.rpartition(":")
    local = "127.0.0.1" if host in {"", "0.0.0.0", "[::]"} else host  # noqa: S104
    # Without the proxy of the environment: this is a local connection.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"http://{local}:{port}{path}", timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError as exc:
        return exc.read().decode(errors="replace").strip() or str(exc)
    return ""


if __name__ == "__main__":
    sys.exit(main())
