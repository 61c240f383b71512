"""Let `watch` take a dump into S3 while its clock jumps, again and again (`make clocks RUNS=50`).

    python -m tests.faults.clocks --runs 50

In each run, the clock of the watcher and of its workers jumps back and ahead by up to a day, each time for
some seconds, and is right at the end. A run is complete if all that the dump has is in the store after that,
with never more than `LATE_S` from one commit to the next: a slow machine is not a stall. Exits with 0 if all
runs are complete.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import fsspec
import numpy as np

from tests.faults.system import faketime
from tests.servers.ceph import CephS3, S3Bucket
from tests.stores import MadeDump, tensor_name

JUMPS_S = (-600.0, -86_400.0, 600.0, -3600.0, 7200.0)
#: How long each jump lasts, and how often the dump gets a step meanwhile.
_HOLD_S = (1.0, 3.0)
_EVERY_S = 0.4
_FILES = 6
#: Stands for the exit code of a watcher that SIGTERM did not end.
_STILL_THERE = -1
#: How long the watcher may take to commit the first step, and from one commit to the next, in seconds.
START_S = LATE_S = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of one run."""

    number: int
    steps: int
    committed: int
    seconds: float
    """From when the clock was right until all was committed, or nothing more was for `LATE_S`."""
    exit_code: int
    ended_s: float
    """From SIGTERM to the end."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was committed in time, and the watcher ended as it should."""
        return self.committed == self.steps and self.exit_code == 0

    def __str__(self) -> str:
        verdict = "complete" if self.is_complete else "NOT COMPLETE"
        return (
            f"run {self.number}: {verdict}, {self.committed} of {self.steps} steps {self.seconds:.1f} s "
            f"after the clock was right; exit {self.exit_code} {self.ended_s:.1f} s after SIGTERM"
        )


def play(number: int, ceph: CephS3, bucket: S3Bucket, program: Path, keep: Path | None = None) -> Run:
    """Play one run: its number is the seed of how long each jump lasts, and of their order."""
    rng = random.Random(f"clocks {number}")
    with tempfile.TemporaryDirectory(prefix="clocks-") as scratch:
        root = Path(scratch)
        clock, made = root / "clock", MadeDump(root / "dump")
        set_clock(clock, 0.0)
        _write_step(made, 0)
        store = f"{bucket.url}-{number}"
        log = (keep or root) / f"watch-{number}.log"
        with log.open("wb") as output:
            command = [str(program), "watch", str(made.root), "--store", store, "--workers", "1"]
            watcher = subprocess.Popen(
                command, env=_environment(ceph, clock), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            _wait_until(lambda: _committed(bucket, store) > 0, START_S)  # its workers run, its clock is right
            steps = _write_while_it_jumps(made, clock, rng)
            right_at = time.monotonic()
            committed = _committed(bucket, store)
            while committed < steps:
                before = committed
                _wait_until(lambda: _committed(bucket, store) > before, LATE_S)  # noqa: B023 (called at once)
                committed = _committed(bucket, store)
                if committed == before:
                    break
            seconds = time.monotonic() - right_at
            watcher.send_signal(signal.SIGTERM)
            ending_at = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                watcher.wait(60)
            code = watcher.poll()
            ended_s = time.monotonic() - ending_at
            return Run(number, steps, committed, seconds, _STILL_THERE if code is None else code, ended_s)
        finally:
            watcher.kill()
            watcher.wait()


def _write_while_it_jumps(made: MadeDump, clock: Path, rng: random.Random) -> int:
    """Write steps while the clock jumps and comes back; return how many."""
    step = 0
    until = time.monotonic() + 1.0
    for shift_s in (None, *rng.sample(JUMPS_S, len(JUMPS_S)), 0.0):
        if shift_s is not None:
            set_clock(clock, shift_s)
            until = time.monotonic() + rng.uniform(*_HOLD_S)
        while time.monotonic() < until:
            step += 1
            _write_step(made, step)
            time.sleep(_EVERY_S)
    return step + 1


def _write_step(made: MadeDump, step: int) -> None:
    for slot in range(_FILES):
        values = np.full((32, 32), step + slot, np.float32)
        made.add(values, tensor_name(f"MatMul.net_MatMul-op{slot}"), step=step)


def _wait_until(is_so: Callable[[], bool], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not is_so() and time.monotonic() < until:
        time.sleep(0.5)


def set_clock(file: Path, shift_s: float) -> None:
    """Shift the clock of the processes that follow this file against the real time."""
    new = file.with_suffix(".new")
    new.write_text(f"{shift_s:+.0f}\n")
    new.rename(file)


def _environment(ceph: CephS3, clock: Path) -> dict[str, str]:
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("DUMP_INGEST_", "AWS_"))}
    return {
        **inherited,
        "AWS_ACCESS_KEY_ID": ceph.access_key,
        "AWS_SECRET_ACCESS_KEY": ceph.secret_key,
        "AWS_ENDPOINT_URL": ceph.endpoint_url,
        "AWS_DEFAULT_REGION": "default",
        "DUMP_INGEST_METRICS": "",
        "DUMP_INGEST_POLL_S": "0.2",
        "DUMP_INGEST_SETTLE_S": "0.2",
        "DUMP_INGEST_QUIET_S": "1",
        "DUMP_INGEST_DRAIN_S": "10",
        "LD_PRELOAD": str(faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
        "NO_FAKE_STAT": "1",
    }


def _committed(bucket: S3Bucket, store: str) -> int:
    """Return how many steps have a commit record."""
    files = fsspec.filesystem("s3", **bucket.storage_options)
    try:
        steps = files.ls(f"{store}/rank_0", refresh=True, detail=False)
    except FileNotFoundError:  # nothing is committed yet
        return 0
    paths = [f"{step}/zarr.json" for step in steps if step.rpartition("/")[2].startswith("step_")]
    return len(files.cat(paths, on_error="omit")) if paths else 0


def main() -> int:
    """Play the runs, and print what came of each."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.clocks", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=1, help="the number of the first run, which is its seed")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="how many runs go side by side")
    parser.add_argument("--program", type=Path, default=Path(sys.executable).parent / "dump-ingest")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="write the logs of watchers there")
    chosen = parser.parse_args()
    if faketime() is None:
        print("not installed: libfaketime (make servers)", file=sys.stderr)
        return 2
    with CephS3() as ceph, ThreadPoolExecutor(chosen.at_once) as pool:
        bucket = ceph.make_bucket("clocks")
        runs = []
        for run in pool.map(
            lambda number: play(number, ceph, bucket, chosen.program, chosen.keep),
            range(chosen.first, chosen.first + chosen.runs),
        ):
            print(run, flush=True)
            runs.append(run)
    complete = sum(run.is_complete for run in runs)
    print(f"{complete} of {len(runs)} runs complete")
    return 0 if complete == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
