"""Peak memory of a worker process: after the large profile, and after one tensor larger than its limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from distributed import Client

from bench.load import build_large_tensor
from bench.measure import Measure, Ratio
from bench.setting import Setting, ingest, workers
from workers.model import MIB

_LIMIT_MIB = 1024.0


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield the peaks."""
    with workers() as client:
        with setting.target() as target:
            ingest(client, setting.load.directory, target)
        yield _peak(client, "large profile")
        nbytes = (512 if setting.quick else 2048) * MIB
        with setting.target() as dump, setting.target() as target:
            build_large_tensor(dump, nbytes)
            ingest(client, dump, target)
        yield _peak(client, f"one tensor of {nbytes // MIB} MiB that cannot be compressed")


def _peak(client: Client, what: str) -> Measure:
    peaks: dict[str, int] = client.run(peak_memory)
    peak = max(peaks.values()) / MIB
    name = f"peak memory of a worker, {what}"
    return Measure(name, "1 GiB", "MiB", (peak,), (_LIMIT_MIB,), Ratio.SHARE, floor=1.0)


def peak_memory() -> int:
    """Return the largest resident size that this process has had, in bytes."""
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert peak
    return int(peak[1]) * 1024
