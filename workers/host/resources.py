"""Processors and memory: what there is, and how much of it this process takes.

Priority and processors pass to processes that it starts later. The share of them is kept by each process
itself: after each piece of a file, it sleeps until what it has used is at most its share of the time.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.errors import UsageError
from workers.model import ranges_text

_SPAN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
#: Sleeps are not shorter, in seconds: waking up costs time, too.
_LEAST_SLEEP_S = 0.005
#: Nor longer: a process must show that it lives.
_LONGEST_SLEEP_S = 1.0
#: What was left unused is not made up for later, beyond this time in seconds.
_CREDIT_S = 0.05


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """What a command and its workers may take of the processors."""

    nice: int = 0
    """0 to 19; 19 gives way to everything else."""
    cpus: frozenset[int] = frozenset()
    """The processors to run on; empty for all."""
    share: float = 1.0
    """Of these processors, above 0 and up to 1."""

    def apply(self) -> None:
        """Take the priority and the processors.

        A priority that is lower already stays. With `nice` 0, every priority stays, because the user
        may have started this process with a higher one.

        Raises:
            UsageError: this process may use none of the processors, or may not choose for itself.
        """
        try:
            self._apply()
        except PermissionError as exc:
            raise UsageError(
                f"nice, cpus: this process may not change its priority or its processors: {exc.strerror}",
                hint="Leave both settings out: the service manager can do it (systemd: Nice=, CPUAffinity=).",
            ) from exc

    def _apply(self) -> None:
        if self.cpus:
            available = os.sched_getaffinity(0)
            if not self.cpus & available:
                raise UsageError(
                    f"cpus: none of {ranges_text(self.cpus, ',')} is available here",
                    hint=f"This process may use {ranges_text(available, ',')}.",
                )
            os.sched_setaffinity(0, self.cpus & available)
        # `os.nice(0)` asks for a change, too, which `SystemCallFilter=~@resources` of systemd forbids.
        missing = self.nice - os.getpriority(os.PRIO_PROCESS, 0)
        if self.nice and missing > 0:
            os.nice(missing)

    def part(self, processes: int) -> float:
        """Return how much of one processor each of these processes may use; 1 for no limit."""
        return 1.0 if self.share == 1 else min(self.share * len(os.sched_getaffinity(0)) / processes, 1.0)


def parse_cpus(text: str) -> frozenset[int]:
    """Return processors such as 0-3,8.

    Raises:
        ValueError: the text does not have this form.
    """
    numbers: set[int] = set()
    for word in filter(None, (word.strip() for word in text.split(","))):
        span = _SPAN.fullmatch(word)
        processors = range(int(span[1]), int(span[2] or span[1]) + 1) if span else ()
        if not processors:
            raise ValueError("must be processors such as 0-3,8")
        numbers |= set(processors)
    return frozenset(numbers)


class Throttle:
    """Keeps this process below a share of one processor. Used by one thread at a time."""

    def __init__(self) -> None:
        self._share = 1.0
        self._since = self._used = 0.0

    def limit(self, share: float) -> None:
        """Allow a share of one processor from now on; 1 for no limit."""
        self._share = share
        self._since, self._used = time.monotonic(), time.process_time()

    def pay(self) -> None:
        """Sleep until the processor time of this process is within its share."""
        if self._share >= 1:
            return
        ahead_s = (time.process_time() - self._used) / self._share - (time.monotonic() - self._since)
        if ahead_s > _LEAST_SLEEP_S:
            time.sleep(min(ahead_s, _LONGEST_SLEEP_S))
        elif ahead_s < -_CREDIT_S:
            self._since += -ahead_s - _CREDIT_S


#: That of this process.
throttle = Throttle()


#: Where a limit of a container stands: control groups of version 2, and of version 1.
_LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_nbytes() -> int:
    """Return the memory of the machine, or of the container if that has less, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMIT_FILES:
        try:
            text = Path(path).read_text("ascii").strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) > 0:  # else "max"
            total = min(total, int(text))
    return total


def available_nbytes() -> int:
    """Return how much memory the machine, or the container if that has less, can still give, in bytes.

    As Linux estimates it: what files have in memory is given back when it is needed.
    """
    available = machine_nbytes()
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, KeyError):  # no control groups of version 2, or no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text("ascii")) for name in ("max", "current"))
        pairs = (line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        files = {name: int(nbytes) for name, nbytes in pairs}["inactive_file"]
        available = min(available, max(limit - used + files, 0))
    return available


def data_nbytes() -> int:
    """Return how much memory this process has that counts against its limit (RLIMIT_DATA), in bytes."""
    return status_nbytes("VmData")


def data_left() -> int | None:
    """Return how much more memory this process may use, in bytes; None if the process has no limit."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return None if limit == resource.RLIM_INFINITY else max(limit - data_nbytes(), 0)


def status_nbytes(field: str) -> int:
    """Return a size of this process from /proc, in bytes; 0 if it has none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


#: One for the process: its parts compare times with one another.
_AHEAD_S = time.time() - time.monotonic()


def steady_time() -> float:
    """Return the time in seconds since the epoch: the wall clock at the start, and since then monotonic."""
    return _AHEAD_S + time.monotonic()


def steady_dask() -> None:
    """Have Dask and Tornado use the steady clock in this process; further calls do nothing more.

    Both are imported by the caller. Event loops that run already go on with it: up to now, it was the same.
    Deadlines of both must come from one clock, so both are changed.
    """
    from tornado.ioloop import IOLoop  # deferred: with distributed, which takes 0.5 s

    IOLoop.time = lambda _loop: steady_time()  # type: ignore[method-assign,assignment]
    for name, module in list(sys.modules.items()):
        is_of_dask = name == "distributed" or name.startswith("distributed.")
        if is_of_dask and getattr(module, "time", None) is time.time:  # imported by name
            module.time = steady_time  # type: ignore[attr-defined]
