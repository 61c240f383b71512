"""What a command costs, from cold start to exit."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """What a command took, in seconds."""

    wall: float
    processor: float
    """User and system time of the command and of all processes that it has started."""


def command_cost(command: Sequence[str]) -> Cost:
    """Run a command to its end; return what it took."""
    os.sync()
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Cost(wall, used.ru_utime + used.ru_stime)


def _environment() -> dict[str, str]:
    """Return the variables of a command that keeps what Python compiles, as an installed wheel has it.

    Otherwise each command would compile the modules again that have changed since any command kept them.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Footprint(NamedTuple):
    """What lies at a path, a file or a directory."""

    nbytes: int
    objects: int


def footprint(path: Path) -> Footprint:
    """Return the bytes and the number of the files at a path."""
    sizes = [file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file()]
    return Footprint(sum(sizes), len(sizes))


def copy_cost(dump: Path, target: Path) -> Cost:
    """Copy a dump with `cp -r`; return what it took."""
    return command_cost(["cp", "-r", str(dump), str(target)])
