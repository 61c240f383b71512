"""Compare ingesting with what people do today, and print how many times as fast it is."""

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

#: What each part measures. A part is a module in `bench.parts` whose `measure` yields figures.
PARTS = {
    "whole": "whole commands from cold start to exit, against cp -r: seconds and processor time",
    "limits": "each stage beside what the machine could do at best",
    "copying": "against cp -r, on the disk and in memory; bytes and objects",
    "containers": "tensors in files of torch.save and of safetensors, against npy and cp -r",
    "peers": "one command against mksquashfs, restic, borg and tar: seconds, bytes, objects",
    "per_tensor": "against an array per tensor: zarr-python, dask, TensorStore",
    "object_store": "to S3 (Ceph), against s3fs; s3fs against obstore",
    "bits": "faults in what operators wrote, at every bit position, and which of them `audit` finds",
    "kernel": "the statistics against numpy",
    "scaling": "two workers against one",
    "reading": "reading back, against the requests alone and zarr-python, from disk and Ceph",
    "pooling": "what data-parallel ranks store, with the pool of a step and without",
    "replicas": "what eight ranks with much in common store, ingested by one command",
    "comparing": "two ranks against each other, against numpy file by file",
    "layouts": "two ranks against one that has all of a model, against reading all of it",
    "consolidating": "a question about all ranks and steps; the cost of adding a step, and of idle rounds",
    "rules": "ingesting with anomaly rules, against ingesting without",
    "sketches": "histograms and marginals: kernels against numpy, and ingesting with them against without",
    "memory": "peak memory of a worker",
    "device": "tensors in the layouts of accelerators",
    "small": "many small files, steps, ranks",
    "stages": "where the time of one process goes",
    "encoders": "our shard encoder, against those of zarr-python and zarrs",
    "codecs": "codecs on real dumps",
}
#: Parts that run only if they are named, because they take long.
LONG_PARTS = {
    "growth": "how everything grows with ranks, steps and tensors: processor time, memory, requests",
    "idle": "a watcher while nothing happens: processor time and memory of all its processes",
    "soaking": "memory and file descriptors of each process under steady load",
    "page": "the page on a large run: first paint, clicks, 20 viewers, the store away for a minute",
    "blackbox": "a training step of PyTorch with and without the black box (needs make torch)",
    "recording": "a training step of PyTorch with and without the recorder (needs make torch)",
    "recovering": "after an outage of the store, and after a restart with many committed steps",
}
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the parts that the command line names; print and write the figures."""
    arguments = _arguments()
    # SIGTERM raises SystemExit, so that directories are removed and servers stopped.
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
            dump=arguments.dump,
        )
        described = machine.describe(setting.disk, setting.memory)
        words = machine.in_words(described)
        print(f"{words}.\nMedians of {setting.rounds} rounds, warm page cache.\n", flush=True)
        parts = [(name, _measured(name, setting)) for name in arguments.parts or PARTS]
    described["load_average_at_end"] = round(os.getloadavg()[0], 2)
    wall_s = time.perf_counter() - started
    print(f"\n{wall_s:.0f} s\n")
    report.print_all(parts)
    run = {"quick": setting.quick, "rounds": setting.rounds, "seconds": round(wall_s)}
    results = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    report.write_json(results / "bench.json", run, described, parts)
    report.write_markdown(results / "bench.md", f"{words}; medians of {setting.rounds} rounds.", parts)
    if measures := report.measures(parts):
        plot.plot(results / "bench.png", measures, words)
    print(f"\n{results}/bench.json, bench.md, bench.png")


def _measured(name: str, setting: Setting) -> list[Measure | Table]:
    """Run one part; print each figure as soon as it is there."""
    print(f"{name}: {(PARTS | LONG_PARTS)[name]}", flush=True)
    started = time.perf_counter()
    figures = []
    for figure in import_module(f"bench.parts.{name}").measure(setting):
        figures.append(figure)
        if isinstance(figure, Measure):
            cells = dict(zip(HEADINGS, figure.row(), strict=True))
            line = "{measure}: {ours}; {against}: {other}; ratio {ratio} {floor}".format(**cells)
        else:
            line = figure.title
        print(f"  {line.rstrip()}", flush=True)
    print(f"  ({time.perf_counter() - started:.0f} s)", flush=True)
    return figures


def _directory(directories: ExitStack, parent: Path | None) -> Path:
    return Path(
        directories.enter_context(tempfile.TemporaryDirectory(prefix="dump-ingest-bench-", dir=parent))
    )


def _memory(directories: ExitStack) -> Path | None:
    shared = Path("/dev/shm")  # noqa: S108  (we make our own directory in it)
    if not os.access(shared, os.W_OK) or machine.file_system(shared) != "tmpfs":
        return None
    return _directory(directories, shared)


def _arguments() -> argparse.Namespace:
    lines = [f"  {name:14}{summary}" for name, summary in PARTS.items()]
    lines += ["only if named:", *(f"  {name:14}{summary}" for name, summary in LONG_PARTS.items())]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="parts:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure (default: everything)")
    parser.add_argument(
        "--quick", action="store_true", help="one round, small samples: less than two minutes"
    )
    parser.add_argument("--rounds", type=int, help="how many rounds (default: 5; with --quick: 1)")
    parser.add_argument("--directory", type=Path, help="where to work: the disk that is measured")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where to write JSON, tables and plot")
    parser.add_argument("--minutes", type=float, default=20, help="soaking: how long it lasts (default: 20)")
    parser.add_argument(
        "--load", type=float, default=0.9, help="soaking: share of the capacity (default: 0.9)"
    )
    parser.add_argument("--ceph", action="store_true", help="soaking, page: in Ceph, not in a directory")
    parser.add_argument("--dump", type=Path, help="peers: a dump of yours (default: one like a real one)")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys() - LONG_PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    main()
