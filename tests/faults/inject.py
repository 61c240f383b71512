"""Inject the faults of a plan into a system, and heal them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from tests.faults.plan import Fault
from tests.faults.proxy import NORMAL, NetworkCondition
from tests.faults.system import SCRATCH_NBYTES, Clock, System
from tests.servers.ceph import Daemon
from tests.servers.process import ServerError

_DAY_S = 86_400.0
#: Whose clocks a fault shifts, and by how much.
_CLOCKS: dict[str, tuple[tuple[Clock, ...], float]] = {
    "clock +10 min": (("watcher", "worker"), 600.0),
    "clock -10 min": (("watcher", "worker"), -600.0),
    "clock +1 h": (("watcher", "worker"), 3600.0),
    "clock -1 d": (("watcher",), -_DAY_S),
    "clock -2 y": (("watcher", "worker"), -730 * _DAY_S),
    "clock of worker +2 h": (("worker",), 7200.0),
    "clock of consolidator +2 h": (("consolidator",), 7200.0),
    "clock of consolidator -2 y": (("consolidator",), -730 * _DAY_S),
    "clock of scheduler -1 h": (("scheduler",), -3600.0),
}


def condition_of(fault: Fault) -> NetworkCondition:
    """Return what the proxy does to connections during a fault of S3."""
    share = 0.4 + 0.6 * fault.severity
    return {
        "503 SlowDown": NetworkCondition("503", share),
        "403 from S3": NetworkCondition("403", share),
        "reset in mid-body": NetworkCondition("reset", share, nbytes=int(200 * 100**fault.severity)),
        "refused connections": NetworkCondition("refuse", share),
        "black hole": NetworkCondition("black hole", share),
        "black hole for long": NetworkCondition("black hole", 1.0),
        "answers lost": NetworkCondition("lose answers", share),
        "slow network": NetworkCondition("slow", delay_s=0.02 + 0.3 * fault.severity),
    }[fault.name]


def target(fault: Fault, workers: int) -> str:
    """Return the name of the process that a fault affects."""
    if fault.component in ("worker", "nanny"):
        return f"{fault.component}-{fault.victim % workers}"
    return {"watcher": "watcher-0", "OSD": "osd"}.get(fault.component, fault.component)


def inject(system: System, fault: Fault) -> None:
    """Begin a fault."""
    verb, name = fault.name.partition(" ")[0], target(fault, system.workers)
    if fault.name in _SPECIAL:
        _SPECIAL[fault.name][0](system)
    elif verb == "stop" and name in _DAEMONS:
        system.ceph.pause(_DAEMONS[name])
    elif verb in _SIGNALS:
        system.signal(name, _SIGNALS[verb])
    elif fault.name in _CLOCKS:
        system.set_clock(*_CLOCKS[fault.name])
    else:
        system.proxy.set(condition_of(fault))


def heal(system: System, fault: Fault) -> None:
    """End a fault. Killed services of this project are not healed here: the supervisor restarts them."""
    verb, name = fault.name.partition(" ")[0], target(fault, system.workers)
    if fault.name in _SPECIAL:
        _SPECIAL[fault.name][1](system)
    elif verb == "stop" and name in _DAEMONS:
        system.ceph.resume(_DAEMONS[name])
    elif verb == "stop":
        system.signal(name, signal.SIGCONT)
    elif fault.name in _CLOCKS:
        system.set_clock(_CLOCKS[fault.name][0], 0)
    elif verb != "kill":
        system.proxy.set(NORMAL)


def _fill_store(system: System) -> None:
    system.ceph.set_quota(system.bucket.name, 4096)


def _empty_store(system: System) -> None:
    _retry(lambda: system.ceph.set_quota(system.bucket.name, None))


def _fill_scratch(system: System) -> None:
    with suppress(OSError), (system.scratch / "ballast").open("wb", buffering=0) as ballast:
        for _ in range(SCRATCH_NBYTES // 65536 + 1):
            ballast.write(bytes(65536))


def _empty_scratch(system: System) -> None:
    (system.scratch / "ballast").unlink(missing_ok=True)


_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_DAEMONS: dict[str, Daemon] = {"gateway": "gateway", "osd": "osd"}
_Step: TypeAlias = Callable[[System], None]
#: Faults with their own ways to inject and to heal them.
_SPECIAL: dict[str, tuple[_Step, _Step]] = {
    "kill gateway": (
        lambda system: system.ceph.kill_gateway(),
        lambda system: _retry(system.ceph.start_gateway),
    ),
    "kill OSD": (lambda system: system.ceph.kill_osd(), lambda system: _retry(system.ceph.start_osd)),
    "store full": (_fill_store, _empty_store),
    "scratch full": (_fill_scratch, _empty_scratch),
    "kill gc": (lambda system: system.begin_gc(), lambda system: system.kill_gc()),
    "second watcher": (lambda system: system.want("watcher-1"), lambda system: system.stop("watcher-1")),
}


def _retry(action: Callable[[], None]) -> None:
    """Repeat an action that other faults may prevent. Raise ServerError if it fails five times."""
    for tries_left in reversed(range(5)):
        try:
            action()
        except ServerError:
            if not tries_left:
                raise
        else:
            return
