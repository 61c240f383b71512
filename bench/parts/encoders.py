"""Encoding shards: our own encoder, that of zarr-python, and zarrs as the codec pipeline of zarr-python.

Payloads of the large profile without copies, in memory, become the same shards in a directory in memory: same
grid, same codecs. On one core, for a worker process has one; and on two, which only zarr and zarrs use.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.encode import ENCODERS, Packed, run, write_packed
from bench.measure import Measure, Table, in_turns, median, shown
from bench.setting import Setting
from bench.stages import Stages, distinct_payloads, plans
from workers.model import StepPlan


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield times and bytes."""
    runs = [("ours", 1), *((name, cores) for cores in (1, 2) for name in ENCODERS if name != "ours")]
    stored: dict[tuple[str, int], int] = {}
    processor: dict[tuple[str, int], list[float]] = {}
    with setting.target(setting.fast) as packed:
        (plan,) = plans(setting.load.directory, packed, Stages())
        arrays = packed_arrays(plan)
        write_packed(packed, arrays)
        raw = sum(one.data.size for one in arrays)

        def encode(encoder: str, cores: int) -> float:
            with setting.target(setting.fast) as target:
                took = run(encoder, cores, packed, target)
                processor.setdefault((encoder, cores), []).append(took.processor_s)
                stored[encoder, cores] = _stored(target / "store")
                check(arrays, target / "store")
                return took.wall_s

        times = in_turns(
            min(setting.rounds, 3),
            {f"{name} {cores}": lambda n=name, c=cores: encode(n, c) for name, cores in runs},  # type: ignore[misc]
        )
    for other in ("zarr-python", "zarrs"):
        yield Measure(
            "encode the shards of a step, one core", other, "s", times["ours 1"], times[f"{other} 1"]
        )
    best = min(min(processor[name, 1]) for name in ENCODERS)
    rows = []
    for name, cores in runs:
        took, work = median(times[f"{name} {cores}"]), min(processor[name, cores])
        figures = (shown(took), shown(raw / 1e6 / took), shown(work), shown(work / best))
        rows.append((name, str(cores), *figures, str(stored[name, cores])))
    yield Table(
        f"Encoders: {raw / 1e6:.0f} MB, {sum(len(one.nbytes) for one in arrays)} payloads",
        ("encoder", "cores", "s", "MB/s", "processor s", "of the best", "bytes stored"),
        tuple(rows),
        note="Seconds are medians; those of the processor, the least of all rounds.",
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
    from workers.store.objects import open_objects, resolve
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
