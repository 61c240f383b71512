"""What each stage takes, beside what the machine could do at best, in processor time of one process.

The best is a loop that does only what cannot be left out, on the same files and bytes, without looking at
them: the system calls, the copy, the digest, the codec. Their sum is the target.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from numcodecs import Blosc

from bench.measure import Measure, Ratio, Table, median, shown
from bench.setting import Setting
from bench.stages import (
    CONVERT_PARTS,
    Distinct,
    Stages,
    as_a_command,
    distinct_payloads,
    ingest_here,
    plans,
    split_convert,
)
from workers.arrays.compiled import kernels
from workers.model import MIB
from workers.tasks.convert import PIECE_BYTES
from workers.tasks.model import Segment, StepPlan

_HEADER_NBYTES = 1024
#: What the best of each stage is; stages without one could be nothing.
BEST = {
    "list": "scandir, stat",
    "inspect": "open, read 1 KiB, close",
    "plan": "",
    "read and digest": "preadv into a buffer in the cache, xxh3",
    "statistics": "memcpy",
    "encode": "blosc (bitshuffle, lz4) of whole chunks",
    "write": "write from a buffer in the cache",
    "publish": "",
}


@dataclass(slots=True)
class _Best:
    """The best of each stage, in seconds of processor time."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(self, stage: str, run: Callable[[], object]) -> None:
        started = time.process_time()
        run()
        self.seconds[stage] = time.process_time() - started


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield a line for each stage, and the ratio of the whole."""
    kernels.warm_up()
    ours: list[Stages] = []
    best: list[_Best] = []
    for _ in range(setting.rounds):
        stages, limits = Stages(clock=time.process_time), _Best()
        with as_a_command(), setting.target(setting.fast) as target:
            ingest_here(setting.load.directory, target, stages)
            for plan in plans(setting.load.directory, target, Stages()):
                split_convert(plan, stages)
                _measure_best(setting.load.directory, plan, target, limits)
        ours.append(stages)
        best.append(limits)
    yield _table(ours, best)
    yield Measure(
        "a step in one process, processor time",
        "the sum of the best of each stage",
        "s",
        tuple(_whole(run) for run in ours),
        tuple(sum(run.seconds.values()) for run in best),
        Ratio.SHARE,
    )


def _whole(run: Stages) -> float:
    """Return what a step takes: `convert` does its parts together, and faster than one after the other."""
    return sum(seconds for name, seconds in run.seconds.items() if name not in CONVERT_PARTS)


def _table(ours: list[Stages], best: list[_Best]) -> Table:
    rows = []
    for stage, what in BEST.items():
        limit = median([run.seconds.get(stage, 0.0) for run in best])
        taken = median([run.seconds[stage] for run in ours])
        rows.append((stage, what or "nothing", shown(limit), shown(taken), _ratio(taken, limit)))
    parts = [sum(run.seconds[name] for name in CONVERT_PARTS) for run in best]
    convert = median([run.seconds["convert"] for run in ours])
    rows.append(("convert, all parts at once", "their sum", shown(median(parts)), shown(convert), ""))
    rows[-1] = (*rows[-1][:4], _ratio(convert, median(parts)))
    total = median([sum(run.seconds.values()) for run in best])
    whole = median([_whole(run) for run in ours])
    rows.append(("the step", "the sum", shown(total), shown(whole), _ratio(whole, total)))
    return Table(
        "One process, large profile, processor time by stage, beside the best",
        ("stage", "the best is", "best, s", "ours, s", "ratio"),
        tuple(rows),
    )


def _ratio(taken: float, limit: float) -> str:
    return f"{taken / limit:.2f}" if limit else ""


def _measure_best(dump: Path, plan: StepPlan, target: Path, best: _Best) -> None:
    paths = [f"{dump}/{entry.source.path}" for entry in plan.entries]
    distinct = distinct_payloads(plan)
    best.time("list", lambda: _list(str(dump)))
    best.time("inspect", lambda: _read_headers(paths))
    best.time("read and digest", lambda: _read_and_digest(paths))
    best.time("statistics", lambda: _copy(distinct))
    joined = [(segment, memoryview(b"".join(data for _, data in payloads))) for segment, payloads in distinct]
    stored: list[int] = []
    best.time("encode", lambda: stored.append(_encode(joined)))
    best.time("write", lambda: _write(target, stored[0]))


def _list(directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _list(entry.path)
            else:
                entry.stat(follow_symlinks=False)


def _read_headers(paths: list[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.pread(fd, _HEADER_NBYTES, 0)
        os.close(fd)


def _read_and_digest(paths: list[str]) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        running, offset = xxhash.xxh3_128(), 0
        while n := os.preadv(fd, [buffer], offset):
            running.update(buffer[:n])
            offset += n
        os.close(fd)


def _copy(distinct: Distinct) -> None:
    buffer = np.empty(MIB, np.uint8)
    for _, payloads in distinct:
        for _, data in payloads:
            source = np.frombuffer(data, np.uint8)
            for start in range(0, source.size, MIB):
                piece = source[start : start + MIB]
                buffer[: piece.size] = piece


def _encode(payloads: list[tuple[Segment, memoryview]]) -> int:
    """Encode payloads of one array each, chunk by chunk; return the bytes that came of them."""
    nbytes = 0
    for segment, data in payloads:
        codec = Blosc("lz4", 5, Blosc.BITSHUFFLE, 0, typesize=min(segment.array.itemsize, 8))
        for start in range(0, len(data), segment.array.chunk_nbytes):
            nbytes += len(codec.encode(data[start : start + segment.array.chunk_nbytes]))
    return nbytes


def _write(target: Path, nbytes: int) -> None:
    content = memoryview(bytes(MIB))
    with open(target / "best", "wb", buffering=0) as file:  # noqa: PTH123  (a `Path` takes longer)
        while nbytes:
            nbytes -= file.write(content[:nbytes])
