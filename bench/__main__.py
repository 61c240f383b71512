"""Measure ingesting against copying and reading the same dump: `python -m bench --help`."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from distributed import Client

from bench.load import Load, build
from bench.stages import CONVERT_PARTS, Stages, ingest_here, plans, split_convert
from ingest.cluster import Cluster
from ingest.committed import Committed
from ingest.completeness import Policy
from ingest.layouts.detect import find_dump
from ingest.reader.store import open_store
from ingest.service import Service
from ingest.settings import Settings
from ingest.submit import Limits, Submitter
from ingest.watch import Watcher
from workers.model import MIB, CommitSummary, Grid
from workers.store.objects import open_objects, resolve

PROFILE = Path(__file__).parent.parent / "tests" / "data" / "tinybert-large.profile.csv.xz"
_WORKERS = 2
#: One file in this many is written as an array of its own; the time is scaled up.
_ZARR_SAMPLE = 20
_ZARR = f"zarr-python: an array per tensor (1 in {_ZARR_SAMPLE}, scaled)"
_EMBEDDED = f"ingest, {_WORKERS} Dask workers (already up)"
_ONE = "read back: open the store, one tensor of 4 KiB"
_SMALL_NBYTES = 4096


@dataclass(slots=True)
class Bench:
    """One run: everything on the same dump and disk, in turns, so that a busy machine hits all alike."""

    directory: Path
    load: Load
    drop_caches: bool
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By name, one for each round."""
    stages: list[Stages] = field(default_factory=list)
    summaries: list[CommitSummary] = field(default_factory=list)

    def round(self, client: Client) -> None:
        """Measure everything once."""
        dump = self.load.directory
        files = sorted(dump.rglob("*.npy"))
        sample = files[::_ZARR_SAMPLE]
        self._time("cp -r", lambda target: copy(dump, target))
        self._time("numpy: read, statistics", lambda _: read_with_numpy(dump))
        self._time(_ZARR, lambda target: write_with_zarr(sample, target), scale=len(files) / len(sample))
        self._time(_EMBEDDED, lambda target: ingest_embedded(dump, target, client))
        stages = Stages()
        with self._target() as target:
            name = "ingest, this process alone"
            self._time(name, lambda target: self.summaries.extend(ingest_here(dump, target, stages)), target)
            self._time("read back: every tensor", read_back, target)
            self._time(_ONE, read_one, target)
            for plan in plans(dump, target, Stages()):
                split_convert(plan, stages)
        self.stages.append(stages)

    def _time(
        self, name: str, run: Callable[[Path], object], target: Path | None = None, *, scale: float = 1.0
    ) -> None:
        with nullcontext(target) if target else self._target() as where:
            os.sync()
            if self.drop_caches:
                Path("/proc/sys/vm/drop_caches").write_text("3")
            started = time.perf_counter()
            run(where)
            self.seconds.setdefault(name, []).append((time.perf_counter() - started) * scale)

    @contextmanager
    def _target(self) -> Iterator[Path]:
        """Yield a path that does not exist, on the disk of the dump; remove it in the end."""
        target = self.directory / "target"
        try:
            yield target
        finally:
            shutil.rmtree(target, ignore_errors=True)


def copy(dump: Path, target: Path) -> None:
    """Copy the dump as an engineer would."""
    subprocess.run(["cp", "-r", dump, target], check=True)


def read_with_numpy(dump: Path) -> None:
    """Read every tensor and summarise it, in the loop that everybody writes."""
    for path in sorted(dump.rglob("*.npy")):
        values = np.load(path)
        finite = values[np.isfinite(values)].astype(np.float64)
        counts = np.isnan(values).sum(), np.isinf(values).sum(), (values == 0).sum(), (values < 0).sum()
        moments = finite.min(), finite.max(), finite.mean(), finite.std(), np.sqrt(np.square(finite).sum())
        assert len(counts) + len(moments) > 0


def write_with_zarr(files: list[Path], target: Path) -> None:
    """Write one Zarr array per tensor, with the defaults of zarr-python."""
    import zarr

    root = zarr.open_group(target, mode="w")
    for path in files:
        root.create_array(path.stem, data=np.load(path))


def ingest_embedded(dump: Path, store: Path, client: Client) -> list[CommitSummary]:
    """Ingest with the worker processes of a running embedded cluster."""
    address = resolve(str(store))
    service = Service(
        Watcher(find_dump(dump), Policy(quiet_s=0, settle_s=0), Grid()),
        Submitter(lambda: client, Limits(1024 * MIB)),
        Committed(open_objects(address)),
        address,
    )
    report = service.ingest(threading.Event())
    assert not report.failures, report.failures
    return report.commits


def read_back(store: Path) -> int:
    """Read every payload of every step; return the bytes."""
    nbytes = 0
    for step in open_store(str(store)).select():
        for _, pieces in step.payloads(step.rows(), 16 * MIB):
            nbytes += sum(len(piece) for piece in pieces)
    return nbytes


def read_one(store: Path) -> None:
    """Open the store and read the tensor whose size is nearest to 4 KiB."""
    found = open_store(str(store))
    step = found.step(*found.keys[0].order[::-1])
    step.read(int(np.argmin(np.abs(step.tables.number("nbytes") - _SMALL_NBYTES))))


def main() -> None:
    """Build the load, measure, print."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="dump-ingest-bench-", dir=arguments.directory) as name:
        load = build(arguments.profile, Path(name) / "dump", steps=arguments.steps, ranks=arguments.ranks)
        bench = Bench(Path(name), load, arguments.drop_caches)
        with Cluster(Settings(workers=_WORKERS)) as cluster:
            client = cluster.connect()
            for _ in range(arguments.rounds):
                bench.round(client)
    print(
        f"{arguments.ranks} ranks, {arguments.steps} steps: {load.files} files, {load.nbytes / 1e6:.0f} MB, "
        f"{load.distinct_nbytes / load.nbytes:.0%} of it distinct.\n"
        f"Medians of {arguments.rounds} rounds. {'Cold' if bench.drop_caches else 'Warm'} page cache; "
        "writes end in the page cache, too.\n"
    )
    _print_times(bench)
    _print_objects(bench)
    _print_stages(bench)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to work; the disk that is measured")
    parser.add_argument("--profile", type=Path, default=PROFILE)
    parser.add_argument("--drop-caches", action="store_true", help="empty the page cache each time (root)")
    return parser.parse_args()


def _print_times(bench: Bench) -> None:
    print(f"{'':58}{'seconds':>9}{'MB/s':>8}{'x cp -r':>9}")
    for name, seconds in bench.seconds.items():
        median_s = statistics.median(seconds)
        rate = "" if name == _ONE else f"{bench.load.nbytes / 1e6 / median_s:.0f}"
        # Round by round, so that noise which lasts for a round cancels.
        ratio = statistics.median(a / b for a, b in zip(seconds, bench.seconds["cp -r"], strict=True))
        print(f"{name:58}{median_s:9.3f}{rate:>8}{ratio:9.2f}")


def _print_objects(bench: Bench) -> None:
    commits = len(bench.summaries)
    objects = sum(summary.objects for summary in bench.summaries) / commits
    files = sum(summary.tensors for summary in bench.summaries) / commits
    raw = sum(summary.raw_bytes for summary in bench.summaries)
    stored = sum(summary.stored_bytes for summary in bench.summaries)
    print(f"\nObjects for one rank and step: {objects:.0f}; with an array per tensor, {2 * files:.0f}.")
    print(f"Stored / raw: {stored / raw:.3f}.")


def _print_stages(bench: Bench) -> None:
    print("\nThis process alone, by stage. Indented: parts of convert, each alone on all of the data")
    for name in bench.stages[0].seconds:
        indent = "  " if name in CONVERT_PARTS else ""
        print(f"{indent + name:58}{statistics.median(run.seconds[name] for run in bench.stages):9.3f}")


if __name__ == "__main__":
    main()
