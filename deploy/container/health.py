#!/usr/bin/env python3
"""Checks the health of the process in this container; exits with 0, or with 1 and the reason.

- `dask scheduler` and `dask worker` must answer at `/health` of their dashboard port.
- `dump-ingest watch` must serve its metrics, and have looked at the dump within `STALE_S`.
- `dump-ingest consolidate --follow` must serve its metrics.
- Any other process only has to run: if it cannot go on, it ends, and the container with it.
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

#: A look takes at most a tenth of the time, so one of three minutes comes every half hour. The same limit as
#: that of the alert DumpIngestWatcherStuck.
STALE_S = 1800
_TIMEOUT_S = 5
_HEARTBEAT = "dump_ingest_watcher_last_look_timestamp_seconds"
_DASHBOARDS = {"scheduler": "8787", "worker": "8790"}


def main() -> int:
    """Check process 1, or the process whose id is on the command line."""
    pid = sys.argv[1] if len(sys.argv) > 1 else "1"
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    try:
        reason = problem_of(words)
    except (OSError, ValueError, urllib.error.URLError) as exc:
        reason = f"{type(exc).__name__}: {exc}"
    if reason:
        sys.stderr.write(f"{reason}\n")
    return 1 if reason else 0


def problem_of(words: Sequence[str]) -> str:
    """Return what is wrong with a running command; "" if nothing is."""
    match [Path(words[0]).name, *words[1:]]:
        case ["dask", ("scheduler" | "worker") as role, *options]:
            dashboard = _option(options, "--dashboard-address") or _DASHBOARDS[role]
            _get(f"http://{_local(dashboard)}/health")
        case ["dump-ingest", "watch", *options]:
            return _stale(_metrics(options, "metrics"))
        case ["dump-ingest", "consolidate", *options] if {"--follow", "-f"} & {*options}:
            _metrics(options, "consolidator_metrics")
        case [interpreter, *command] if interpreter.startswith("python") and command:
            return problem_of(command)
    return ""


def _metrics(options: Sequence[str], setting: str) -> str:
    """Return the metrics that a command serves; "" if it serves none."""
    address = _option(options, "--metrics") or _setting(setting, options)
    return _get(f"http://{_local(address)}/metrics") if address else ""


def _setting(name: str, options: Sequence[str]) -> str:
    from ingest.settings import load  # deferred: pydantic takes 0.1 s to import, in each health check

    config = _option(options, "--config") or _option(options, "-c")
    return getattr(load(Path(config) if config else None).settings, name) or ""


def _stale(metrics: str) -> str:
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        # It is 0 before the first look: the watcher still waits for the dump.
        if name == _HEARTBEAT and 0 < float(value) < time.time() - STALE_S:
            return f"has not looked at the dump for {time.time() - float(value):.0f} s"
    return ""


def _option(options: Sequence[str], name: str) -> str:
    for word, value in zip(options, [*options[1:], ""], strict=False):
        if word == name:
            return value
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def _local(address: str) -> str:
    """Return host and port to connect to, for an address to listen on."""
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
