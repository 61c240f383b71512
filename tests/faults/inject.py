"""Does the faults of a plan to a system, and heals them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

from tests.faults.plan import Fault
from tests.faults.proxy import FINE, Weather
from tests.faults.system import SCRATCH_NBYTES, System
from tests.servers.ceph import Daemon
from tests.servers.process import ServerError

_CLOCKS = {"clock +10 min": 600.0, "clock -10 min": -600.0, "clock +1 h": 3600.0}


def weather(fault: Fault) -> Weather:
    """Return what a fault of S3 is for the proxy."""
    share = 0.4 + 0.6 * fault.severity
    return {
        "503 SlowDown": Weather("503", share),
        "403 from S3": Weather("403", share),
        "reset in mid-body": Weather("reset", share, nbytes=int(200 * 100**fault.severity)),
        "refused connections": Weather("refuse", share),
        "black hole": Weather("black hole", share),
        "answers lost": Weather("deaf", share),
        "slow network": Weather("slow", delay_s=0.02 + 0.3 * fault.severity),
    }[fault.name]


def target(fault: Fault, workers: int) -> str:
    """Return the process that a fault is done to."""
    if fault.component in ("worker", "nanny"):
        return f"{fault.component}-{fault.victim % workers}"
    return {"watcher": "watcher-0", "OSD": "osd"}.get(fault.component, fault.component)


def inject(system: System, fault: Fault) -> None:
    """Begin a fault."""
    what, name = fault.name.partition(" ")[0], target(fault, system.workers)
    if fault.name == "kill gateway":
        system.ceph.kill_gateway()
    elif fault.name == "kill OSD":
        system.ceph.kill_osd()
    elif what == "stop" and name in _DAEMONS:
        system.ceph.pause(_DAEMONS[name])
    elif what in _SIGNALS:
        system.signal(name, _SIGNALS[what])
    elif fault.name in _CLOCKS:
        system.set_clock(_CLOCKS[fault.name])
    elif fault.name in _OTHERS:
        _OTHERS[fault.name](system)
    else:
        system.proxy.set(weather(fault))


def _fill_store(system: System) -> None:
    system.ceph.set_quota(system.bucket.name, 4096)


def _fill_scratch(system: System) -> None:
    with suppress(OSError), (system.scratch / "ballast").open("wb", buffering=0) as ballast:
        for _ in range(SCRATCH_NBYTES // 65536 + 1):
            ballast.write(bytes(65536))


def _start_second_watcher(system: System) -> None:
    system.want("watcher-1")


_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_DAEMONS: dict[str, Daemon] = {"gateway": "gateway", "osd": "osd"}
_OTHERS: dict[str, Callable[[System], None]] = {
    "store full": _fill_store,
    "scratch full": _fill_scratch,
    "second watcher": _start_second_watcher,
}


def heal(system: System, fault: Fault) -> None:
    """End a fault. What was killed of our own services, the supervisor starts again."""
    what, name = fault.name.partition(" ")[0], target(fault, system.workers)
    if fault.name == "kill gateway":
        _again(system.ceph.start_gateway)
    elif fault.name == "kill OSD":
        _again(system.ceph.start_osd)
    elif what == "stop" and name in _DAEMONS:
        system.ceph.resume(_DAEMONS[name])
    elif what == "stop":
        system.signal(name, signal.SIGCONT)
    elif fault.name == "store full":
        _again(lambda: system.ceph.set_quota(system.bucket.name, None))
    elif fault.name == "scratch full":
        (system.scratch / "ballast").unlink(missing_ok=True)
    elif fault.name in _CLOCKS:
        system.set_clock(0)
    elif fault.name == "second watcher":
        system.stop("watcher-1")
    elif what != "kill":
        system.proxy.set(FINE)


def _again(what: Callable[[], None]) -> None:
    """Do something that other faults may hinder, until it is done."""
    for tries_left in reversed(range(5)):
        try:
            what()
        except ServerError:
            if not tries_left:
                raise
        else:
            return
