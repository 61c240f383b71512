"""The program behind `make demo`: ingest a real dump of two ranks in which a NaN appears."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.stores import unpack

DIRECTORY = Path("demo")
COMMAND = Path(sys.executable).parent / "dump-ingest"
STEPS = (
    ("Ingest the dump into a store:", "ingest demo/dump --store demo/run.zarr"),
    ("Where did the NaN come from?", "origin demo/run.zarr"),
)
NEXT = """\
What to try next:

  dump-ingest show demo/run.zarr 'Log.*.input.0' --rank 1 --step 2       the input of the operator
  dump-ingest find demo/run.zarr --where "nan_count > 0"                 every tensor with NaN
  dump-ingest divergence demo/run.zarr                                   do the replicas agree?
  dump-ingest compare demo/run.zarr@0,2 demo/run.zarr@1,2                how do two ranks differ?
  dump-ingest trend demo/run.zarr 'Neg.*.output.0' --stat mean           the loss over the steps
  dump-ingest ls demo/run.zarr                                           all steps
  dump-ingest verify demo/run.zarr                                       read everything back
  dump-ingest export demo/run.zarr demo/out --rank 1 --step 2            the original files

(`. .venv/bin/activate` first.)
"""


def main() -> int:
    """Unpack the dump, ingest it, ask where the NaN came from, and print what to try next."""
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
