"""Run a campaign of faults against the whole system (`make chaos`).

    python -m tests.faults --seed 8 --minutes 10

Starts the whole system on this machine and lets a job dump, while faults are injected by a schedule that the
seed determines. Exits with 0 if nothing was lost, late, wrong, half visible or quarantined without a name,
and with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import report
from tests.faults.campaign import DRAIN_S, run, say
from tests.faults.plan import KINDS, Fault, Pace, available, schedule
from tests.faults.story import Job, story
from tests.servers.ceph import PROGRAMS


def main() -> int:
    """Run a campaign and print its tables."""
    chosen = _arguments()
    seed, seconds = chosen.seed, chosen.minutes * 60
    pace = Pace(first_s=min(5.0, seconds / 4), pause_s=(min(1.0, chosen.pause), chosen.pause))
    job = Job(ranks=chosen.ranks, every_s=chosen.every)
    if chosen.plan:
        everything = [kind.needs for kind in KINDS]
        print(report.plan_table(schedule(seed, seconds, available(everything, chosen.only), pace)))
        return 0
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        print(f"not installed: {', '.join(missing)} (make servers)", file=sys.stderr)
        return 2
    # aiohttp logs there every connection that a fault breaks.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # A shell that starts the campaign in the background makes it ignore SIGINT; undo that.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)

    def plan(has: Sequence[str]) -> list[Fault]:
        for kind in KINDS:
            if kind.needs and kind.needs not in has:
                say(f"left out because this machine does not have {kind.needs}: {kind.name}")
        faults = schedule(seed, seconds, available(has, chosen.only), pace)
        say(f"seed {seed}\n{report.plan_table(faults)}")
        return faults

    result = run(
        seed,
        seconds,
        plan=plan,
        actions=story(seed, seconds, job),
        job=job,
        workers=chosen.workers,
        deletes=chosen.delete,
        within_s=chosen.within,
        keep=chosen.keep,
    )
    print(report.table(result))
    if chosen.json:
        chosen.json.write_text(json.dumps(report.as_json(result), indent=1))
    return 0 if result.is_good else 1


def _arguments() -> argparse.Namespace:
    """Parse and check the arguments. Without `--seed`, the time determines the seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seed", type=int, default=None, help="determines the faults; default: from the time of day"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the job dumps")
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND", help="use this kind of fault only; repeatable"
    )
    parser.add_argument(
        "--every", type=float, default=6.0, metavar="SECONDS", help="time from one step to the next"
    )
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks of the job")
    parser.add_argument("--workers", type=int, default=2, help="number of Dask workers")
    parser.add_argument(
        "--pause", type=float, default=8.0, metavar="SECONDS", help="longest pause between faults"
    )
    parser.add_argument(
        "--delete", action="store_true", help="the watcher deletes committed files from the dump"
    )
    parser.add_argument(
        "--within",
        type=float,
        default=DRAIN_S,
        metavar="SECONDS",
        help="what is in the dump and not in the store so long after the last fault is late",
    )
    parser.add_argument("--plan", action="store_true", help="print the schedule and exit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="copy logs, dump and store into this directory"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.only) - {kind.name for kind in KINDS}:
        names = ", ".join(kind.name for kind in KINDS)
        parser.error(f"unknown kind of fault: {', '.join(sorted(unknown))}; choose from: {names}")
    if not min(chosen.minutes, chosen.every, chosen.ranks, chosen.workers, chosen.within) > 0:
        parser.error("--minutes, --every, --ranks, --workers and --within must be greater than 0")
    if chosen.seed is None:
        chosen.seed = int(time.time()) % 100_000
    return chosen


if __name__ == "__main__":
    sys.exit(main())
