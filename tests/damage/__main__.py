"""Damage each kind of object of a store in each way, and ask everything (`make damage`).

    python -m tests.damage --seed 8 --flips 20

Exits with 1 if an answer was wrong without naming the damage, a command crashed or hung, or something good
was changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.damage.campaign import Campaign, Outcome, run
from tests.damage.whole_store import make

#: Root reads what it likes, so it gives that up.
_WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


def main() -> int:
    """Run a campaign and print what was wrong, and a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which bits are flipped, and where objects end")
    parser.add_argument("--flips", type=int, default=1, help="single bits flipped in each object")
    parser.add_argument("--kinds", default="", help="only objects whose kind matches this regular expression")
    parser.add_argument("--log", type=Path, help="where every case is written, a line of JSON each")
    chosen = parser.parse_args()
    counts: Counter[Outcome] = Counter()
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="dump-ingest-damage-"))
        log = stack.enter_context(chosen.log.open("w")) if chosen.log else None
        for case in run(Campaign(make(Path(root))), flips=chosen.flips, seed=chosen.seed, kinds=chosen.kinds):
            counts[case.outcome] += 1
            if case.outcome.is_fault:
                print(case, flush=True)
            if log is not None:
                print(json.dumps(case.to_dict()), file=log, flush=True)
    for outcome, count in counts.most_common():
        print(f"{count:7}  {outcome}")
    return int(any(outcome.is_fault for outcome in counts))


if __name__ == "__main__":
    if os.geteuid() == 0 and shutil.which("setpriv") and "DAMAGE" not in os.environ:
        words = [*_WITHOUT_PRIVILEGES, sys.executable, "-m", "tests.damage", *sys.argv[1:]]
        os.execvpe("setpriv", words, {**os.environ, "DAMAGE": "1"})  # noqa: S606
    sys.exit(main())
