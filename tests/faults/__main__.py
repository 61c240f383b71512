"""The fault campaign behind `make chaos`.

    python -m tests.faults --seed 8 --minutes 10

Starts the whole system on this machine, lets a job dump into it, and does it harm after a schedule that the
seed gives. Ends with 0 if nothing was lost, wrong or seen by halves, with 1 otherwise.
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
from tests.faults.campaign import run, say
from tests.faults.plan import KINDS, Fault, Pace, available, schedule
from tests.faults.story import Job, story
from tests.servers.ceph import PROGRAMS


def main() -> int:
    """Run a campaign and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="default: of this second")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND", help="a kind of fault; again for more"
    )
    parser.add_argument("--every", type=float, default=4.0, metavar="SECONDS", help="from step to step")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pause", type=float, default=8.0, metavar="SECONDS", help="between faults, at most")
    parser.add_argument(
        "--delete", action="store_true", help="the watcher deletes from the dump what is committed"
    )
    parser.add_argument("--plan", action="store_true", help="print the schedule and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go, too")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="where logs, dump and store go")
    chosen = parser.parse_args()
    if unknown := set(chosen.only) - {kind.name for kind in KINDS}:
        parser.error(
            f"no such fault: {', '.join(unknown)}; there are: {', '.join(kind.name for kind in KINDS)}"
        )
    if not min(chosen.minutes, chosen.every, chosen.ranks, chosen.workers) > 0:
        parser.error("--minutes, --every, --ranks and --workers are above 0")
    seed = int(time.time()) % 100_000 if chosen.seed is None else chosen.seed
    seconds = chosen.minutes * 60
    pace = Pace(first_s=min(5.0, seconds / 4), pause_s=(min(1.0, chosen.pause), chosen.pause))
    job = Job(ranks=chosen.ranks, every_s=chosen.every)
    if chosen.plan:
        everything = [kind.needs for kind in KINDS]
        print(report.plan_table(schedule(seed, seconds, available(everything, chosen.only), pace)))
        return 0
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        print(f"not installed: {', '.join(missing)} (make servers)", file=sys.stderr)
        return 2
    # aiohttp complains there of every connection that was broken on purpose.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    for signum in (signal.SIGINT, signal.SIGTERM):  # also where a shell has told us to ignore the first
        signal.signal(signum, signal.default_int_handler)

    def plan(has: Sequence[str]) -> list[Fault]:
        kinds = available(has, chosen.only)
        for kind in KINDS:
            if kind.needs and kind.needs not in has:
                say(f"not covered, for want of {kind.needs}: {kind.name}")
        faults = schedule(seed, seconds, kinds, pace)
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
        keep=chosen.keep,
    )
    print(report.table(result))
    if chosen.json:
        chosen.json.write_text(json.dumps(report.as_json(result), indent=1))
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
