"""`python -m proving`: run the cases, score the answers, print the tables."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path

from proving import report
from proving.case import Result, Verdict
from proving.runner import Proving


def main() -> int:
    """Run what the command line names; return 1 if a program or a question broke."""
    arguments = _arguments()
    if arguments.answers:
        return _with(arguments.answers)
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="proving-") as directory,
        Proving(Path(arguments.keep or directory), arguments.jobs, as_agent=arguments.agent) as proving,
    ):
        every = proving.cases(arguments.seed)
        cases = [case for case in every if any(fnmatchcase(case.name, only) for only in arguments.only)]
        if arguments.list:
            print("\n".join(f"{case.name} ({case.source})" for case in cases))
            return 0
        results = proving.results(cases, _say)
    print(report.text(results, verbose=arguments.verbose))
    if arguments.before:
        print(report.changes(results, arguments.before.read_text()))
    print(f"{len(results)} cases in {time.perf_counter() - started:.0f} s")
    if arguments.json:
        arguments.json.write_text(report.json_of(results))
    if arguments.html:
        arguments.html.write_text(report.html(results))
    return int(any(Verdict.BROKEN in result.verdicts.values() for result in results))


def _with(folder: Path) -> int:
    """Do the same with these programs, and `ingest` and `workers` of another working tree."""
    without = argparse.ArgumentParser(add_help=False)
    without.add_argument("--with")
    _, others = without.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="proving-") as directory:
        Path(directory, "proving").symlink_to(Path(__file__).parent)
        path = os.pathsep.join((directory, str(folder.resolve())))
        command = [sys.executable, "-P", "-m", "proving", *others]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def _say(result: Result) -> None:
    verdicts = " ".join(f"{question}={verdict}" for question, verdict in result.verdicts.items())
    print(f"{result.case.name}: {verdicts}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proving", description=__doc__)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="cases with such names")
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and run none")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    parser.add_argument(
        "--agent", action="store_true", help="ask as an agent does: six calls of the tools of `mcp`"
    )
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    parser.add_argument(
        "--with", dest="answers", type=Path, metavar="FOLDER", help="the answers of this working tree"
    )
    parser.add_argument("--before", type=Path, metavar="FILE", help="say what changed since this --json")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIRECTORY",
        help="keep the stores of all runs there, and run none that is there already",
    )
    parser.add_argument("--verbose", action="store_true", help="print what every answer says")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
