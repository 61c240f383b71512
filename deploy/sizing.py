#!/usr/bin/env python3
"""Computes what ingesting the dumps of a training job takes: workers, bandwidth, requests, and money on S3.

    python deploy/sizing.py                                          prints the table of docs/sizing.md
    python deploy/sizing.py --write                                  writes that table into the page
    python deploy/sizing.py --ranks 1024 --step-mb 722 --every 60    prints the figures for your job

All figures follow from the measurements in docs/design/004-performance.md. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "sizing.md"
#: Bytes of dump per second that one worker, on one processor, ingests into object storage: two workers took
#: 2.72 s for 722 MB. The object store shared their two processors, so the real rate is higher.
INGEST_SECONDS = 2.72
WORKER_RATE = 722e6 / INGEST_SECONDS / 2
#: Worker-seconds that each step of a rank costs at least: 3.14 ms for twenty small files, with two workers.
SMALL_STEP_SECONDS = 3.14e-3
STEP_SECONDS = 2 * SMALL_STEP_SECONDS
#: Stored bytes per byte of dump: copies are stored once, everything is compressed.
STORED_RATIO = 0.309
#: Planned load of the workers. The rest is a reserve for late steps, dying workers, and peaks.
BUSY = 2 / 3
#: Objects of a step of a rank besides its shards: 22 in total for a step of 85 kB, 29 for 722 MB.
SMALL_OBJECTS = 28
SHARD, PART, JOB = 128 * 2**20, 32 * 2**20, 128 * 2**20
#: Tasks per second of one scheduler: 182 with its client and worker on the same two busy processors.
SCHEDULER_RATE = 150
#: Seconds in which one process consolidates one tensor of a step of a rank: 15 ms for 5000 tensors.
CONSOLIDATE_SECONDS = 0.015 / 5000
#: A round of the consolidator lists that many ranks in turn, and all of them while a step begins and is not
#: whole: twice, if the ranks need less time for it than two rounds. From one round to the next, `--poll`.
LISTED_IN_TURN, LISTED_FOR_A_STEP, POLL_SECONDS = 512, 2, 5
#: List prices of S3 Standard in us-east-1, in dollars: for a request that writes or lists, one that reads,
#: and for a gigabyte (10^9 bytes) per month. Change them here.
PRICE_PUT, PRICE_GET, PRICE_GB_MONTH = 0.005 / 1000, 0.0004 / 1000, 0.023
MONTH_S = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Job:
    """A training job that dumps `step_bytes` per rank and step, and a step every `every_s` seconds."""

    ranks: int
    step_bytes: float
    every_s: float
    tensors: int = 5000
    keep_days: float = 7
    ranks_per_host: int = 8


@dataclass(frozen=True, slots=True)
class Size:
    """What a job takes. Bandwidths are in bytes per second, averaged over the interval between steps."""

    workers: int
    workers_per_host: float
    read_per_host: float
    upload: float
    puts_per_s: float
    lists_per_s: float
    tasks_per_s: float
    schedulers: int
    consolidator_busy: float
    """Load of one consolidator, as a share of its time; above 1 it falls behind."""
    stored_per_day: float
    dollars_per_month: float


def size(job: Job) -> Size:
    """Return what a job takes that dumps without a pause."""
    steps_per_s = job.ranks / job.every_s
    stored = job.step_bytes * STORED_RATIO
    busy_workers = steps_per_s * (job.step_bytes / WORKER_RATE + STEP_SECONDS)
    workers = max(1, math.ceil(busy_workers / BUSY))
    hosts = math.ceil(job.ranks / job.ranks_per_host)
    puts_per_s = steps_per_s * puts(stored)
    tasks_per_s = steps_per_s * tasks(job.step_bytes)
    stored_per_day = steps_per_s * stored * 86_400
    # Assume that as many requests read as write: from the consolidator, watchers and people.
    lists_per_s = lists(job.ranks) / POLL_SECONDS + steps_per_s * LISTED_FOR_A_STEP
    requests = MONTH_S * (puts_per_s * (PRICE_PUT + PRICE_GET) + lists_per_s * PRICE_PUT)
    return Size(
        workers=workers,
        workers_per_host=workers / hosts,
        read_per_host=steps_per_s * job.step_bytes / hosts,
        upload=steps_per_s * stored,
        puts_per_s=puts_per_s,
        lists_per_s=lists_per_s,
        tasks_per_s=tasks_per_s,
        schedulers=max(1, math.ceil(tasks_per_s / SCHEDULER_RATE)),
        consolidator_busy=steps_per_s * job.tensors * CONSOLIDATE_SECONDS,
        stored_per_day=stored_per_day,
        dollars_per_month=requests + stored_per_day * job.keep_days / 1e9 * PRICE_GB_MONTH,
    )


def puts(stored: float) -> float:
    """Return the number of requests that write a step of a rank; shards begin, have parts, and end."""
    return SMALL_OBJECTS + math.ceil(stored / PART) + 2 * math.ceil(stored / SHARD)


def lists(ranks: int) -> float:
    """Return the number of listings of a round of the consolidator in which nothing is new."""
    return (
        min(ranks, LISTED_IN_TURN) + math.ceil(ranks / 1000) + 1
    )  # names of ranks, 1000 at once; announcements


def tasks(step_bytes: float) -> float:
    """Return the number of Dask tasks of a step of a rank: jobs and commit; 16 small steps share one."""
    if step_bytes <= 2**20:
        return 1 / 16
    jobs = math.ceil(step_bytes / JOB)
    return 1 if jobs == 1 else jobs + 1


#: The jobs in the documentation, from a small one to one of ten thousand ranks.
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
    "LIST/s",
    "tasks/s",
    "schedulers",
    "consolidator",
    "stored a day",
    "7 days on S3",
)


def row(job: Job) -> tuple[str, ...]:
    """Return one cell for each of `COLUMNS`."""
    needs = size(job)
    return (
        f"{job.ranks:,}",
        _bytes(job.step_bytes),
        f"{job.every_s:g} s",
        f"{needs.workers:,}",
        f"{needs.workers_per_host:.2g}",
        f"{_bytes(needs.read_per_host)}/s",
        f"{_bytes(needs.upload)}/s",
        f"{needs.puts_per_s:,.0f}",
        f"{needs.lists_per_s:,.0f}",
        f"{needs.tasks_per_s:,.1f}",
        str(needs.schedulers),
        f"{needs.consolidator_busy:.0%}",
        _bytes(needs.stored_per_day),
        f"${needs.dollars_per_month:,.0f} a month",
    )


def table(jobs: Iterable[Job]) -> str:
    """Return a table in Markdown."""
    lines: list[Sequence[str]] = [COLUMNS, ["---"] * len(COLUMNS), *map(row, jobs)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_table(page: str) -> str:
    """Return a page with the current table in place of the old one, which it recognises by its columns."""
    head, columns, rest = page.partition(f"| {' | '.join(COLUMNS)} |\n")
    if not columns:
        raise SystemExit(f"{PAGE} has no table with the columns of {Path(__file__).name}")
    old_rows = itertools.takewhile(lambda line: line.startswith("|"), rest.splitlines(keepends=True))
    return head + table(JOBS) + rest[sum(map(len, old_rows)) :]


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def main() -> int:
    """Print the table or write it into the page; or print the figures of one job."""
    parser = argparse.ArgumentParser(description="Compute what ingesting the dumps of a training job takes.")
    parser.add_argument("--write", action="store_true", help="write the table into docs/sizing.md")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--step-mb", type=float, help="megabytes (10^6) per rank and step")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="time from step to step")
    parser.add_argument("--keep-days", type=float, default=7)
    chosen = parser.parse_args()
    given = (chosen.ranks, chosen.step_mb, chosen.every)
    if any(value is not None for value in given):
        if not all(value is not None and value > 0 for value in given) or chosen.keep_days < 0:
            parser.error("give all of --ranks, --step-mb and --every, as numbers above 0")
        job = Job(chosen.ranks, chosen.step_mb * 1e6, chosen.every, keep_days=chosen.keep_days)
        columns = [*COLUMNS[:-1], f"{chosen.keep_days:g} days on S3"]
        for name, value in zip(columns, row(job), strict=True):
            sys.stdout.write(f"{name:20} {value}\n")
    elif chosen.write:
        PAGE.write_text(with_table(PAGE.read_text()))
    else:
        sys.stdout.write(table(JOBS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
