"""Encoding shards: our own encoder, that of zarr-python, and zarrs as the codec pipeline of zarr-python.

Payloads of the large profile without copies, in memory, become the same shards in a directory in memory: same
grid, same codecs. On one core, for a worker process has one; and on two, which only zarr and zarrs use.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bench.encode import ENCODERS, MALLOC, Packed, run, write_packed
from bench.measure import Measure, Table, in_turns, median, shown
from bench.setting import Setting
from bench.stages import Stages, distinct_payloads, plans
from workers.tasks.model import StepPlan

Run: TypeAlias = tuple[str, int, str]
"""Encoder, cores, malloc."""


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield times and bytes."""
    runs = [(name, 1, malloc) for malloc in MALLOC for name in ENCODERS]
    runs += [(name, 2, "keeps") for name in ENCODERS if name != "ours"]
    stored: dict[Run, int] = {}
    processor: dict[Run, list[float]] = {}
    with setting.target(setting.fast) as packed:
        (plan,) = plans(setting.load.directory, packed, Stages())
        arrays = packed_arrays(plan)
        write_packed(packed, arrays)
        raw = sum(one.data.size for one in arrays)

        def encode(one: Run) -> float:
            with setting.target(setting.fast) as target:
                took = run(*one, packed, target)
                processor.setdefault(one, []).append(took.processor_s)
                stored[one] = _stored(target / "store")
                check(arrays, target / "store")
                return took.wall_s

        times = in_turns(setting.rounds, {str(one): lambda one=one: encode(one) for one in runs})  # type: ignore[misc]
    for malloc in MALLOC:
        for other in ("zarr-python", "zarrs"):
            name = f"encode the shards of a step, one core, malloc {malloc}"
            ours, others = times[str(("ours", 1, malloc))], times[str((other, 1, malloc))]
            yield Measure(name, other, "s", ours, others)
    rows = []
    for one in runs:
        name, cores, malloc = one
        took, work = median(times[str(one)]), median(processor[one])
        best = min(median(processor[other, 1, malloc]) for other in ENCODERS)
        figures = (shown(took), shown(raw / 1e6 / took), shown(work), shown(work / best))
        rows.append((name, str(cores), malloc, *figures, str(stored[one])))
    yield Table(
        f"Encoders: {raw / 1e6:.0f} MB, {sum(len(one.nbytes) for one in arrays)} payloads",
        ("encoder", "cores", "malloc", "s", "MB/s", "processor s", "of the best", "bytes stored"),
        tuple(rows),
        note="Medians. The best: of the processor, on one core, with the same malloc.",
    )


def packed_arrays(plan: StepPlan) -> list[Packed]:
    """Return the packed arrays of a step, as ingesting packs them."""
    payloads: dict[str, list[bytes]] = {}
    for segment, distinct in distinct_payloads(plan):
        payloads.setdefault(segment.array.path, []).extend(data for _, data in distinct if data)
    return [
        Packed(
            spec,
            tuple(len(data) for data in payloads[spec.path]),
            np.frombuffer(b"".join(payloads[spec.path]), np.uint8),
        )
        for spec in plan.arrays
        if payloads.get(spec.path)
    ]


def check(arrays: list[Packed], store: Path) -> None:
    """Check the first and the last chunk of each array: they are what was put in."""
    from workers.store.opening import open_objects, resolve
    from workers.store.shards import ShardReader

    for one in arrays:
        reader = ShardReader(open_objects(resolve(str(store))), one.spec.path, one.spec)
        size = one.data.size // one.spec.itemsize
        for start in (0, size - size % one.spec.chunk if size % one.spec.chunk else size - one.spec.chunk):
            stop = min(start + one.spec.chunk, size)
            wanted = one.data[start * one.spec.itemsize : stop * one.spec.itemsize]
            assert reader.read(start, stop) == wanted.tobytes(), one.spec.path


def _stored(store: Path) -> int:
    return sum(
        path.stat().st_size for path in store.rglob("*") if path.is_file() and path.name != "zarr.json"
    )
