"""A long time under steady load: memory and file descriptors of each process must not grow.

First the capacity of the service is measured. Then the job dumps at a share of this capacity (`--load`) for
some time (`--minutes`), and removes steps that are committed. Job and service share their cores all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from bench.measure import Measure, Ratio, Table, median, shown
from bench.running import Job, Processes, Sample, cluster, sample, service
from bench.setting import Setting, store_for

#: The last quarter may hold at most this many times what the second quarter held.
LIMIT = 1.05
_MIB = 1024 * 1024
#: How long the capacity is measured, and how many steps wait at any time meanwhile.
_CAPACITY_S, _BACKLOG = 90.0, 16
#: Number and float32 bytes of the files of a step. As many files as a real step has: with fewer, twenty
#: minutes would have more steps than real days. Small files: larger ones would fill the disk.
_STEP = ((900, 1024), (100, 65_536))
#: Committed steps that stay in the dump.
_KEPT = 20


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield for each process what it holds in the last quarter, against the second quarter."""
    with ExitStack() as stack:
        store, env = stack.enter_context(store_for(setting))
        job = Job(stack.enter_context(setting.target()), _STEP)
        job.write()
        dask = stack.enter_context(cluster(env))
        running = stack.enter_context(service(dask, job.dump, store, env))
        capacity = _capacity(job, running, 10 if setting.quick else _CAPACITY_S)
        pace = setting.load_share * capacity
        before = job.steps
        started = time.monotonic()
        samples, pending = _soak(job, running, pace, 60 * setting.minutes)
        wall_s = time.monotonic() - started
        yield _load(setting, capacity, (job.steps - before) / wall_s, pending, job)
        yield from _growth(samples)


def _capacity(job: Job, running: Processes, seconds: float) -> float:
    """Return how many steps are committed per second if there is always a backlog.

    The first third of the time does not count: kernels are compiled, modules are imported.
    """
    started = time.monotonic()
    first, counted_from = 0, 0.0
    while (now := time.monotonic() - started) < seconds:
        committed = running.commits
        if now >= seconds / 3 and not counted_from:
            first, counted_from = committed, now
        job.write(max(committed + _BACKLOG - job.steps, 0))
        job.remove_below(committed - _KEPT)
        time.sleep(0.05)
    capacity = (running.commits - first) / (now - counted_from)
    running.wait_for_commits(job.steps)
    return capacity


def _soak(
    job: Job, running: Processes, pace: float, seconds: float
) -> tuple[dict[str, list[Sample]], list[float]]:
    """Dump `pace` steps per second; return samples of each process, one per second, and the backlogs."""
    samples: dict[str, list[Sample]] = {name: [] for name in running.pids}
    pending: list[float] = []
    started = time.monotonic()
    first, next_sample = job.steps, 0.0
    while (now := time.monotonic() - started) < seconds:
        job.write(max(int(now * pace) - (job.steps - first), 0))
        if now >= next_sample:
            next_sample += 1
            for name, pid in running.pids.items():
                samples[name].append(sample(pid))
            committed = running.commits
            pending.append(job.steps - committed)
            job.remove_below(committed - _KEPT)
        time.sleep(min(0.05, 0.5 / pace))
    running.wait_for_commits(job.steps)
    return samples, pending


def _load(setting: Setting, capacity: float, pace: float, pending: Sequence[float], job: Job) -> Table:
    rows = (
        ("capacity, measured just before", f"{shown(capacity)} steps/s"),
        ("load", f"{shown(pace)} steps/s, {pace / capacity:.0%}"),
        ("a step", f"{shown(job.step_nbytes / 1024)} KiB"),
        ("steps dumped and committed", f"{job.steps}"),
        ("backlog, median and maximum", f"{shown(median(pending))}, {shown(max(pending))} steps"),
        ("store", "Ceph" if setting.in_ceph else "directory"),
    )
    return Table(f"soak: {shown(setting.minutes)} minutes", ("what", "figure"), rows)


def _growth(samples: dict[str, list[Sample]]) -> Iterator[Measure]:
    for name, of_process in samples.items():
        for what, unit, values in (
            ("resident memory", "MiB", [moment.rss_nbytes / _MIB for moment in of_process]),
            ("file descriptors", "", [float(moment.descriptors) for moment in of_process]),
        ):
            quarter = len(values) // 4
            second, last = values[quarter : 2 * quarter], values[3 * quarter :]
            yield Measure(
                f"{what} of {name}, last quarter",
                "second quarter",
                unit,
                (median(last),),
                (median(second),),
                Ratio.SHARE,
                floor=LIMIT,
            )
