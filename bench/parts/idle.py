"""A watcher of a committed dump while nothing happens: processor time and memory of all its processes.

It is measured after a minute without work, when its workers have ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]  # it has none

from bench.load import build_small
from bench.measure import Measure, Ratio
from bench.setting import Setting
from tests.cli import run, start

#: Ranks, steps, files of a step, and how many times what the first may take each may take.
_SMALL, _LONG, _QUICK = (2, 3, 200, 1), (16, 1000, 4, 2), (16, 100, 4, 2)
_SETTLED_S, _MEASURED_S = 90.0, 60.0
_MOST_PERCENT, _MOST_MB = 0.5, 160.0


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield the share of a core, and the resident memory, for a short run and for a long one."""
    for size in (_SMALL, _QUICK if setting.quick else _LONG):
        yield from _idle(setting, *size)


def _idle(setting: Setting, ranks: int, steps: int, files: int, times: int) -> Iterator[Measure]:
    with setting.target(setting.fast) as dump, setting.target(setting.fast) as store:
        build_small(dump, ranks=ranks, steps=steps, files=files)
        if times > 1:  # a watcher that was started again
            env = {"DUMP_INGEST_CONSOLIDATE": "false"}  # it takes minutes, and a watcher does not need it
            run("ingest", dump, "--store", store, "--quiet", "0", env=env, timeout_s=3600)
        with start("watch", dump, "--store", store) as watching:
            told, count = ("watching", 1) if times > 1 else ("step_committed", ranks * steps)
            watching.wait_until(lambda: len(watching.events(told)) == count, timeout_s=120)
            time.sleep(_SETTLED_S)
            while psutil.Process(watching.pid).children():  # they still read committed files again
                time.sleep(1)
            before, _ = _used(watching.pid)
            time.sleep(_MEASURED_S)
            after, resident = _used(watching.pid)
            watching.terminate()
    percent = 100 * (after - before) / _MEASURED_S
    of = f"of {ranks} ranks x {steps} steps"
    yield _at_most(f"idle watch {of}, processor", "% of a core", percent, times * _MOST_PERCENT)
    yield _at_most(f"idle watch {of}, resident memory", "MB", resident / 1e6, times * _MOST_MB)


def _used(pid: int) -> tuple[float, int]:
    """Return the seconds of processor time and the resident bytes of a process and its children."""
    watcher = psutil.Process(pid)
    processes = [watcher, *watcher.children(recursive=True)]
    times = [process.cpu_times() for process in processes]
    resident = sum(process.memory_info().rss for process in processes)
    return sum(used.user + used.system for used in times), resident


def _at_most(name: str, unit: str, figure: float, most: float) -> Measure:
    return Measure(name, f"{most:g} {unit}", unit, (figure,), (most,), Ratio.SHARE, floor=1.0)
