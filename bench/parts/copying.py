"""Ingesting the large profile from the disk, against copying it: to the same disk, and to memory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.load import Load
from bench.measure import Measure, Ratio, in_turns, seconds
from bench.setting import WORKERS, Setting, ingest, workers
from bench.stages import Stages, ingest_here
from workers.model import MIB
from workers.store.model import CommitSummary


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times, bytes and objects."""
    places = [("disk", setting.disk, 2.0)]
    if setting.memory:
        places.append(("tmpfs", setting.memory, 1.0))
    summaries: list[CommitSummary] = []
    with workers() as client:

        def with_workers(dump: Path, target: Path) -> None:
            summaries.extend(ingest(client, dump, target))

        def alone(dump: Path, target: Path) -> None:
            ingest_here(dump, target, Stages())

        for place, parent, floor in places:
            into = _Into(setting, parent, setting.load)
            into(with_workers)  # warm-up, not measured
            times = in_turns(
                setting.rounds,
                {
                    "copy": lambda into=into: into(copy),  # type: ignore[misc]
                    "ingest": lambda into=into: into(with_workers),  # type: ignore[misc]
                    "alone": lambda into=into: into(alone),  # type: ignore[misc]
                },
            )
            against = f"cp -r to {place}"
            yield Measure(
                f"ingest, {WORKERS} workers, to {place}",
                against,
                "s",
                times["ingest"],
                times["copy"],
                floor=floor,
            )
            yield Measure(
                f"ingest, one process, no Dask, to {place}", against, "s", times["alone"], times["copy"]
            )
    yield from _sizes(summaries[-1], setting.load)


def copy(dump: Path, target: Path) -> None:
    """Copy a dump as an engineer would do it."""
    subprocess.run(["cp", "-r", dump, target], check=True)


class _Into:
    """Measures how long a function takes to turn the load into something new below one directory."""

    def __init__(self, setting: Setting, parent: Path, load: Load) -> None:
        self._setting, self._parent, self._load = setting, parent, load

    def __call__(self, run: Callable[[Path, Path], object]) -> float:
        with self._setting.target(self._parent) as target:
            return seconds(lambda: run(self._load.directory, target))


def _sizes(summary: CommitSummary, load: Load) -> Iterator[Measure]:
    assert summary.tensors == load.files
    stored, raw = summary.stored_bytes / 1e6, summary.raw_bytes / 1e6
    yield Measure("stored bytes", "raw bytes", "MB", (stored,), (raw,), Ratio.SHARE, floor=0.33)
    yield Measure(
        "objects of a rank and step",
        "40 + stored / 128 MiB",
        "objects",
        (summary.objects,),
        (40 + summary.stored_bytes / (128 * MIB),),
        Ratio.SHARE,
        floor=1.0,
    )
