"""Measure ingesting against what people do today, and print how many times as fast it is."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from bench import machine, plot, report
from bench.measure import HEADINGS, Measure, Table
from bench.setting import Setting

#: By name: the module in `bench.parts`, whose `measure` yields figures.
PARTS = {
    "copying": "against cp -r, on the disk and in memory; bytes and objects",
    "per_tensor": "against an array per tensor: zarr-python, dask, TensorStore",
    "object_store": "to S3 (Ceph), against s3fs; s3fs against obstore",
    "kernel": "the statistics against numpy",
    "scaling": "two workers against one",
    "reading": "reading back",
    "comparing": "two ranks against each other, against numpy file by file",
    "consolidating": "a question to all ranks and steps; what a further step costs",
    "rules": "ingesting with anomaly rules against without",
    "memory": "peak memory of a worker",
    "device": "tensors in the layouts of accelerators",
    "small": "many small files, steps, ranks",
    "stages": "where the time of one process goes",
    "encoders": "our shard encoder, zarr-python's, that of zarrs",
    "codecs": "codecs on real dumps",
}
#: Those that are measured only where they are named: they take their time.
LONG_PARTS = {
    "soaking": "memory and file descriptors of every process under steady load",
    "recovering": "after the store was away, and after a restart with many committed steps",
}
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    # So that directories and servers are removed then, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    started = time.perf_counter()
    with ExitStack() as directories:
        setting = Setting(
            disk=_directory(directories, arguments.directory),
            memory=_memory(directories),
            rounds=arguments.rounds or (1 if arguments.quick else 5),
            quick=arguments.quick,
            minutes=arguments.minutes,
            load_share=arguments.load,
            in_ceph=arguments.ceph,
        )
        described = machine.describe(setting.disk, setting.memory)
        words = machine.in_words(described)
        print(f"{words}.\nMedians of {setting.rounds} rounds, warm page cache.\n", flush=True)
        parts = [(name, _measured(name, setting)) for name in arguments.parts or PARTS]
    described["load_average_at_end"] = round(os.getloadavg()[0], 2)
    took = time.perf_counter() - started
    print(f"\n{took:.0f} s\n")
    report.print_all(parts)
    run = {"quick": setting.quick, "rounds": setting.rounds, "seconds": round(took)}
    where = arguments.results
    where.mkdir(parents=True, exist_ok=True)
    report.write_json(where / "bench.json", run, described, parts)
    report.write_markdown(where / "bench.md", f"{words}; medians of {setting.rounds} rounds.", parts)
    if measures := report.measures(parts):
        plot.plot(where / "bench.png", measures, words)
    print(f"\n{where}/bench.json, bench.md, bench.png")


def _measured(name: str, setting: Setting) -> list[Measure | Table]:
    """Run one part; say each figure as it comes."""
    print(f"{name}: {(PARTS | LONG_PARTS)[name]}", flush=True)
    started = time.perf_counter()
    found = []
    for one in import_module(f"bench.parts.{name}").measure(setting):
        found.append(one)
        if isinstance(one, Measure):
            cells = dict(zip(HEADINGS, one.row(), strict=True))
            said = "{measure}: {ours}; {against}: {other}; ratio {ratio} {floor}".format(**cells)
        else:
            said = one.title
        print(f"  {said.rstrip()}", flush=True)
    print(f"  ({time.perf_counter() - started:.0f} s)", flush=True)
    return found


def _directory(directories: ExitStack, parent: Path | None) -> Path:
    return Path(
        directories.enter_context(tempfile.TemporaryDirectory(prefix="dump-ingest-bench-", dir=parent))
    )


def _memory(directories: ExitStack) -> Path | None:
    shared = Path("/dev/shm")  # noqa: S108  (a directory of our own in it)
    if not os.access(shared, os.W_OK) or machine.file_system(shared) != "tmpfs":
        return None
    return _directory(directories, shared)


def _arguments() -> argparse.Namespace:
    lines = [f"  {name:14}{what}" for name, what in PARTS.items()]
    lines += ["only where they are named:", *(f"  {name:14}{what}" for name, what in LONG_PARTS.items())]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="parts:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure (default: everything)")
    parser.add_argument("--quick", action="store_true", help="one round, small samples: under two minutes")
    parser.add_argument("--rounds", type=int, help="how often (default: 5; with --quick 1)")
    parser.add_argument("--directory", type=Path, help="where to work; the disk that is measured")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where JSON, tables and plot go")
    parser.add_argument("--minutes", type=float, default=20, help="soaking: how long (default: 20)")
    parser.add_argument(
        "--load", type=float, default=0.9, help="soaking: share of the capacity (default: 0.9)"
    )
    parser.add_argument("--ceph", action="store_true", help="soaking: into Ceph, and no directory")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys() - LONG_PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    main()
