"""Reading from a store: everything, and one small tensor."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.measure import Measure, in_turns, seconds
from bench.setting import WORKERS, Setting, ingest, workers
from ingest.api import open_store
from ingest.reader.step import Step
from workers.model import MIB

_SMALL_NBYTES = 4096


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times on the disk."""
    dump = setting.load.directory
    with workers() as client, setting.target() as store:
        ingest(client, dump, store)
        step, row = _small(store)
        name = Path(step.tables.label("source")[row]).name

        def ingest_again() -> float:
            with setting.target() as target:
                return seconds(lambda: ingest(client, dump, target))

        times = in_turns(
            setting.rounds,
            {
                "ingest": ingest_again,
                "all": lambda: seconds(lambda: read_back(store)),
                "one": lambda: seconds(lambda: read_one(store)),
                "file": lambda: seconds(lambda: np.load(next(dump.rglob(glob.escape(name))))),
            },
        )
    against = f"ingest, {WORKERS} workers, disk"
    name = "read every tensor back, one process"
    yield Measure(name, against, "s", times["all"], times["ingest"], floor=1.0)
    yield Measure(
        "open the store, read a tensor of 4 KiB",
        "find and np.load its file",
        "s",
        times["one"],
        times["file"],
    )


def read_back(store: Path) -> int:
    """Read every payload of every step; return the number of bytes."""
    nbytes = 0
    for step in open_store(str(store)).select():
        for _, pieces in step.payloads(step.rows(), 16 * MIB):
            nbytes += sum(len(piece) for piece in pieces)
    return nbytes


def read_one(store: Path | str) -> None:
    """Open the store, and read the tensor whose size is closest to 4 KiB."""
    step, row = _small(store)
    step.read(row)


def _small(store: Path | str) -> tuple[Step, int]:
    opened = open_store(str(store))
    first = opened.keys[0]
    step = opened.step(first.rank, first.step)
    return step, int(np.argmin(np.abs(step.tables.number("nbytes") - _SMALL_NBYTES)))
