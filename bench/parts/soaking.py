"""A long time under steady load: memory and file descriptors of each process must stay as they are.

The job dumps at a share of what the service was measured to take just before, and removes steps that are
committed; both on the same cores as the service, also while that is measured. Without `--minutes` it lasts
twenty, and with `--load` it is another share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from bench.measure import Measure, Ratio, Table, median, shown
from bench.running import Job, Processes, Sample, cluster, sample, service
from bench.setting import Setting, store_for

#: The last quarter may hold so many times what the second one held.
LIMIT = 1.05
_MIB = 1024 * 1024
#: How long it is measured how fast steps are taken, and how many of them wait at any time meanwhile.
_CAPACITY_S, _BACKLOG = 90.0, 16
#: Files of a step, and float32 bytes of each: as many as a real step has, or more steps would be made in
#: twenty minutes than in days; and small, or more bytes than a disk has.
_STEP = ((900, 1024), (100, 65_536))
#: Committed steps that stay in the dump.
_KEPT = 20


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield, for each process, what it holds in the last quarter against the second one."""
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
        taken, pending = _soak(job, running, pace, 60 * setting.minutes)
        took = time.monotonic() - started
        yield _load(setting, capacity, (job.steps - before) / took, pending, job)
        yield from _flat(taken)


def _capacity(job: Job, running: Processes, seconds: float) -> float:
    """Return how many steps are committed in a second, when there are always some more.

    Not counted is the first third: kernels are compiled, everything is imported.
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
    """Dump at this pace; return samples of each process, one in a second, and the backlogs."""
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
        ("backlog, median and most", f"{shown(median(pending))}, {shown(max(pending))} steps"),
        ("store", "Ceph" if setting.in_ceph else "directory"),
    )
    return Table(f"soak: {shown(setting.minutes)} minutes", ("what", "figure"), rows)


def _flat(samples: dict[str, list[Sample]]) -> Iterator[Measure]:
    for name, found in samples.items():
        for what, unit, values in (
            ("resident memory", "MiB", [one.rss_nbytes / _MIB for one in found]),
            ("file descriptors", "", [float(one.descriptors) for one in found]),
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
