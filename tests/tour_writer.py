"""Play a training job that goes wrong: write the iterations of a real dump repeatedly, as new steps.

    python -m tests.tour_writer DIRECTORY --every 5 --healthy 6

The dump is `nan-log-2rank`, from two replicas. Its first iteration is healthy; in its second, `Log` on rank 1
takes the logarithm of a negative number. The first `--healthy` steps repeat the healthy iteration; all later
steps repeat the other one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.stores import unpack

_HEALTHY, _FAULTY = "1", "2"


def write(recorded: Path, into: Path, *, every_s: float, healthy: int, steps: int) -> Iterator[int]:
    """Write a step below `into` every `every_s` seconds, and yield its number when its last file is closed.

    As with MindSpore, files grow, are closed, and lose their write permission. Each step contains all ranks.
    """
    for rank in sorted(recorded.glob("rank_*")):
        for run_directory in rank.iterdir():  # graphs and execution order, which belong to no step
            if run_directory.is_dir() and not (run_directory / "0").is_dir():
                shutil.copytree(run_directory, into / rank.name / run_directory.name, dirs_exist_ok=True)
    for step in range(1, steps + 1):
        due = time.monotonic() + every_s
        source = _HEALTHY if step <= healthy else _FAULTY
        for rank in sorted(recorded.glob("rank_*")):
            for iteration in rank.glob(f"*/*/{source}"):
                target = into / iteration.relative_to(recorded).with_name(str(step))
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
                for file in sorted(iteration.iterdir()):
                    _write_file(target / file.name, file.read_bytes())
        yield step
        time.sleep(max(0.0, due - time.monotonic()))


def _write_file(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        file.write(data[len(data) // 2 :])
    path.chmod(0o400)


def main() -> int:
    """Write steps until the process is stopped or the last step is written."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--healthy", type=int, default=6, metavar="STEPS")
    parser.add_argument("--steps", type=int, default=400)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        recorded = unpack("nan-log-2rank", Path(scratch)) / "dump"
        for step in write(
            recorded, chosen.directory, every_s=chosen.every, healthy=chosen.healthy, steps=chosen.steps
        ):
            print(f"step {step}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
