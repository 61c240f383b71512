"""What a worker process does before its first task."""

from __future__ import annotations

import threading

from workers.arrays.compiled import kernels
from workers.host.cpu import CpuLimits, throttle


def prepare(limits: CpuLimits, part: float) -> None:
    """Keep to limits, and have the loops over tensors made if that was not done before.

    They are made while the first step is planned and its files are read, by a process that may outlive the
    command: one that takes less than six seconds would never have them.

    Args:
        limits: of the command and its workers.
        part: how much of one processor this process may use.
    """
    limits.apply()
    throttle.limit(part)
    threading.Thread(target=kernels.warm_up, kwargs={"apart": True}, daemon=True).start()
