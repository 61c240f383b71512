"""The tour behind `make demo`: a real dump of two ranks, in which a NaN is born, goes into a store."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.dumps import unpack

DIRECTORY = Path("demo")
COMMAND = Path(sys.executable).parent / "dump-ingest"
STEPS = (
    ("Take the dump into a store:", "ingest demo/dump --store demo/run.zarr"),
    ("Which tensors hold NaN, in order of execution?", 'find demo/run.zarr --where "nan_count > 0"'),
)
NEXT = """\
The NaN was born in `Log` on rank 1 at step 2. Go on from here:

  dump-ingest show demo/run.zarr 'Log.*.output.0' --rank 1 --step 2      its values
  dump-ingest show demo/run.zarr 'Log.*.input.0' --rank 1 --step 2       and what went in
  dump-ingest ls demo/run.zarr                                           all steps
  dump-ingest verify demo/run.zarr                                       read everything back
  dump-ingest export demo/run.zarr demo/out --rank 1 --step 2            the original files

(`. .venv/bin/activate` first.)
"""


def main() -> int:
    """Unpack, ingest, find, and say what to try next."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    unpack("nan-log-2rank", DIRECTORY)
    (DIRECTORY / "nan-log-2rank" / "dump").rename(DIRECTORY / "dump")
    shutil.rmtree(DIRECTORY / "nan-log-2rank")
    for title, command in STEPS:
        print(f"\n# {title}\n$ dump-ingest {command}", flush=True)
        code = subprocess.run([COMMAND, *shlex.split(command)], check=False).returncode
        if code:
            return code
    print(f"\n{NEXT}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
