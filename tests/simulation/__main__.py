"""Play schedules: `python -m tests.simulation --seed 1 --schedules 100000`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import get_args

from tests.simulation.search import Found, Played, play_in_processes, shortest, trace
from tests.simulation.world import Cast, Setting


def main(words: list[str] | None = None) -> int:
    """Play the schedules; return 1 if one violates an invariant."""
    options = _parser().parse_args(words)
    setting = Setting(options.cast)
    if options.trace:
        return _show(options.seed, setting)
    began, total = time.monotonic(), Played()
    for played in play_in_processes(options.seed, options.schedules, setting, options.processes):
        total.add(played)
        if total.found or (options.seconds and time.monotonic() > began + options.seconds):
            break
    seconds = time.monotonic() - began
    casts = ", ".join(f"{cast} {count}" for cast, count in sorted(total.casts.items()))
    print(
        f"{total.schedules} schedules ({casts}), {total.steps} steps, {total.faults} faults "
        f"in {seconds:.1f} s: {total.schedules / seconds:.0f} per second"
    )
    if total.found:
        _report(total.found[0], options)
        return 1
    print("no invariant was violated")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each schedule has its own")
    parser.add_argument("--schedules", type=_positive, default=10_000, help="how many")
    parser.add_argument("--seconds", type=_positive, help="end after so long, although some are left")
    parser.add_argument("--processes", type=_positive, default=os.cpu_count() or 1)
    parser.add_argument(
        "--cast", choices=get_args(Cast), help="who takes part; drawn from the seed if not given"
    )
    parser.add_argument(
        "--trace", action="store_true", help="play the schedule of --seed alone, and print it"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _show(seed: int, setting: Setting) -> int:
    lines, violation = trace(seed, setting)
    print("\n".join(lines))
    if violation is None:
        return 0
    print(f"\n{violation}")
    return 1


def _report(found: Found, options: argparse.Namespace) -> None:
    """Print how to play a schedule again, and the shortest one like it."""
    words = [f"--cast {options.cast}"] if options.cast else []
    setting = Setting(options.cast)
    print(f"\nseed {found.seed} violates an invariant.\n{found.message}")
    command = " ".join([f"python -m tests.simulation --trace --seed {found.seed}", *words])
    print(f"\nto see all of it: {command}")
    lines, violation = shortest(found.seed, setting)
    print(f"\nthe shortest schedule like it:\n{chr(10).join(lines)}\n{violation}")


if __name__ == "__main__":
    sys.exit(main())
