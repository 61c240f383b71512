"""How much memory this machine, or the container around this process, has; and what this process may use."""

from __future__ import annotations

import os
import resource
from pathlib import Path

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
