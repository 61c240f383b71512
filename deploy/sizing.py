#!/usr/bin/env python3
"""What it takes to ingest the dumps of a training job: workers, bandwidth, requests, memory, and money on S3.

    python deploy/sizing.py                                          the table of docs/sizing.md
    python deploy/sizing.py --ranks 1024 --step-mb 722 --every 60    the same for your job

Every figure is arithmetic on what docs/design/004-performance.md has measured. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Bytes of dump per second that one worker, on one processor, takes into object storage: two took 722 MB in
#: 2.68 s. The object store ran on the same two processors, so it is rather more.
WORKER_RATE = 722e6 / 2.68 / 2
#: Worker-seconds that a step of a rank costs whatever its size: 5.36 ms for twenty small files, two workers.
STEP_SECONDS = 2 * 5.36e-3
#: Stored bytes per byte of dump: copies are stored once, and the rest is compressed.
STORED_RATIO = 0.309
#: How busy workers are planned to be: the rest is for steps that come late, workers that die, and peaks.
BUSY = 2 / 3
#: Objects of a step of a rank, beside its shards: 22 in all for one of 85 kB, 29 for one of 722 MB.
SMALL_OBJECTS = 28
SHARD, PART, JOB = 128 * 2**20, 32 * 2**20, 128 * 2**20
#: Tasks per second of one scheduler: 182 with its client and its worker on the same two busy processors.
SCHEDULER_RATE = 150
#: Seconds in which one process consolidates a tensor of a step of a rank: 15 ms for 5000 of them.
CONSOLIDATE_SECONDS = 0.015 / 5000
#: Dollars, by the list of S3 Standard in us-east-1: for a request that writes, for one that reads, and for a
#: gigabyte (10^9 bytes) during a month. Other prices: change them here.
PRICE_PUT, PRICE_GET, PRICE_GB_MONTH = 0.005 / 1000, 0.0004 / 1000, 0.023
MONTH_S = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Job:
    """A training job that dumps: `step_bytes` per rank and step, a step every `every_s` seconds."""

    ranks: int
    step_bytes: float
    every_s: float
    tensors: int = 5000
    """Per rank and step."""
    keep_days: float = 7
    """How long steps stay in the store, for its size and price."""
    ranks_per_host: int = 8


@dataclass(frozen=True, slots=True)
class Size:
    """What a job takes. Bandwidths are bytes per second, averaged over the interval of the dump."""

    workers: int
    workers_per_host: float
    read_per_host: float
    upload: float
    puts_per_s: float
    tasks_per_s: float
    schedulers: int
    consolidator_busy: float
    """Share of its time that one consolidator works; above 1 it falls behind."""
    stored_per_day: float
    dollars_per_month: float


def size(job: Job) -> Size:
    """Return what a job takes, when it dumps without a pause."""
    steps_per_s = job.ranks / job.every_s
    stored = job.step_bytes * STORED_RATIO
    busy_workers = steps_per_s * (job.step_bytes / WORKER_RATE + STEP_SECONDS)
    workers = max(1, math.ceil(busy_workers / BUSY))
    hosts = math.ceil(job.ranks / job.ranks_per_host)
    puts_per_s = steps_per_s * puts(stored)
    tasks_per_s = steps_per_s * tasks(job.step_bytes)
    stored_per_day = steps_per_s * stored * 86_400
    # As many requests read as write: of the consolidator, of watchers that compare, of people who ask.
    requests = puts_per_s * MONTH_S * (PRICE_PUT + PRICE_GET)
    return Size(
        workers=workers,
        workers_per_host=workers / hosts,
        read_per_host=steps_per_s * job.step_bytes / hosts,
        upload=steps_per_s * stored,
        puts_per_s=puts_per_s,
        tasks_per_s=tasks_per_s,
        schedulers=max(1, math.ceil(tasks_per_s / SCHEDULER_RATE)),
        consolidator_busy=steps_per_s * job.tensors * CONSOLIDATE_SECONDS,
        stored_per_day=stored_per_day,
        dollars_per_month=requests + stored_per_day * job.keep_days / 1e9 * PRICE_GB_MONTH,
    )


def puts(stored: float) -> float:
    """Return the requests that write a step of a rank: small objects; shards, begun, in parts, ended."""
    return SMALL_OBJECTS + math.ceil(stored / PART) + 2 * math.ceil(stored / SHARD)


def tasks(step_bytes: float) -> float:
    """Return the Dask tasks of a step of a rank: its jobs and the commit; up to 16 small steps share one."""
    jobs = math.ceil(step_bytes / JOB)
    return 1 / 16 if step_bytes <= 2**20 else 1 if jobs == 1 else jobs + 1


#: From a small job to one of ten thousand ranks.
JOBS = (
    Job(8, 0.1e6, 1, tensors=250),
    Job(8, 722e6, 60),
    Job(64, 722e6, 60),
    Job(256, 722e6, 60),
    Job(1024, 722e6, 60),
    Job(1024, 8e9, 600),
    Job(4096, 722e6, 300),
    Job(10_000, 0.1e6, 60, tensors=250),
    Job(10_000, 722e6, 600),
    Job(10_000, 8e9, 3600),
)
COLUMNS = (
    "ranks",
    "per rank and step",
    "every",
    "workers",
    "per host of 8",
    "read per host",
    "upload, all",
    "PUT/s",
    "tasks/s",
    "schedulers",
    "consolidator",
    "stored a day",
    "7 days on S3",
)


def row(job: Job) -> tuple[str, ...]:
    """Return the cells of a table, one for each of `COLUMNS`."""
    found = size(job)
    return (
        f"{job.ranks:,}",
        _bytes(job.step_bytes),
        f"{job.every_s:g} s",
        f"{found.workers:,}",
        f"{found.workers_per_host:.2g}",
        f"{_bytes(found.read_per_host)}/s",
        f"{_bytes(found.upload)}/s",
        f"{found.puts_per_s:,.0f}",
        f"{found.tasks_per_s:,.1f}",
        str(found.schedulers),
        f"{found.consolidator_busy:.0%}",
        _bytes(found.stored_per_day),
        f"${found.dollars_per_month:,.0f} a month",
    )


def table(jobs: Iterable[Job]) -> str:
    """Return a table in Markdown."""
    lines: list[Sequence[str]] = [COLUMNS, ["---"] * len(COLUMNS), *map(row, jobs)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def main() -> int:
    """Print the table, or the row of one job."""
    parser = argparse.ArgumentParser(description="What it takes to ingest the dumps of a training job.")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--step-mb", type=float, help="megabytes (10^6) per rank and step")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="from step to step")
    parser.add_argument("--keep-days", type=float, default=7)
    chosen = parser.parse_args()
    given = (chosen.ranks, chosen.step_mb, chosen.every)
    if any(value is not None for value in given):
        if not all(value is not None and value > 0 for value in given) or chosen.keep_days < 0:
            parser.error("--ranks, --step-mb and --every belong together, and are above 0")
        job = Job(chosen.ranks, chosen.step_mb * 1e6, chosen.every, keep_days=chosen.keep_days)
        columns = [*COLUMNS[:-1], f"{chosen.keep_days:g} days on S3"]
        for name, value in zip(columns, row(job), strict=True):
            sys.stdout.write(f"{name:20} {value}\n")
    else:
        sys.stdout.write(table(JOBS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
