"""Encoding shards: our own encoder, that of zarr-python, and zarrs as the codec pipeline of zarr-python.

Each turns the distinct payloads of the large profile, in memory, into the same shards in a directory in
memory, with the same grid and codecs. They run on one core, as a worker process does; zarr-python and zarrs,
which can use more, also run on two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bench.encode import ENCODERS, MALLOC, Packed, run, write_packed
from bench.measure import Measure, Table, in_turns, median, shown
from bench.setting import Setting
from bench.stages import Stages, distinct_payloads, plans
from workers.store.opening import open_objects, resolve
from workers.store.packed.shards import ShardReader
from workers.tasks.model import StepPlan

EncoderRun: TypeAlias = tuple[str, int, str]
"""Encoder, number of cores, malloc."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """What one round of a run took."""

    wall_s: float
    processor_s: float
    stored_nbytes: int


_Results: TypeAlias = Mapping[EncoderRun, Sequence[_Encoded]]
"""The rounds of each run."""


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield times and bytes."""
    runs = [(name, 1, malloc) for malloc in MALLOC for name in ENCODERS]
    runs += [(name, 2, "keeps") for name in ENCODERS if name != "ours"]
    with setting.target(setting.fast) as source:
        (plan,) = plans(setting.load.directory, source, Stages())
        arrays = packed_arrays(plan)
        write_packed(source, arrays)
        results = _run_all(setting, runs, source, arrays)
    for malloc in MALLOC:
        for other in ("zarr-python", "zarrs"):
            ours, others = (
                tuple(encoded.wall_s for encoded in results[encoder, 1, malloc])
                for encoder in ("ours", other)
            )
            name = f"encode the shards of a step, one core, malloc {malloc}"
            yield Measure(name, other, "s", ours, others)
    yield _table(runs, results, arrays)


def _run_all(
    setting: Setting, runs: Sequence[EncoderRun], source: Path, arrays: Sequence[Packed]
) -> _Results:
    def encode(encoder_run: EncoderRun) -> _Encoded:
        with setting.target(setting.fast) as target:
            times = run(*encoder_run, source, target)
            check(arrays, target / "store")
            return _Encoded(times.wall_s, times.processor_s, _stored(target / "store"))

    return in_turns(setting.rounds, {encoder_run: partial(encode, encoder_run) for encoder_run in runs})


def _table(runs: Sequence[EncoderRun], results: _Results, arrays: Sequence[Packed]) -> Table:
    raw = sum(packed.data.size for packed in arrays)
    rows = []
    for encoder_run in runs:
        name, cores, malloc = encoder_run
        wall_s = median([encoded.wall_s for encoded in results[encoder_run]])
        processor_s = _processor_s(results[encoder_run])
        best = min(_processor_s(results[other, 1, malloc]) for other in ENCODERS)
        figures = (shown(wall_s), shown(raw / 1e6 / wall_s), shown(processor_s), shown(processor_s / best))
        rows.append((name, str(cores), malloc, *figures, str(results[encoder_run][-1].stored_nbytes)))
    return Table(
        f"Encoders: {raw / 1e6:.0f} MB, {sum(len(packed.nbytes) for packed in arrays)} payloads",
        ("encoder", "cores", "malloc", "s", "MB/s", "processor s", "of the best", "bytes stored"),
        tuple(rows),
        note="Medians. The best: the least processor time on one core with the same malloc.",
    )


def _processor_s(rounds: Sequence[_Encoded]) -> float:
    return median([encoded.processor_s for encoded in rounds])


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


def check(arrays: Iterable[Packed], store: Path) -> None:
    """Check that the first and the last chunk of each array hold what was encoded."""
    for packed in arrays:
        spec = packed.spec
        reader = ShardReader(open_objects(resolve(str(store))), spec.path, spec)
        size = packed.data.size // spec.itemsize
        for start in (0, size - size % spec.chunk if size % spec.chunk else size - spec.chunk):
            stop = min(start + spec.chunk, size)
            encoded = packed.data[start * spec.itemsize : stop * spec.itemsize]
            assert reader.read(start, stop) == encoded.tobytes(), spec.path


def _stored(store: Path) -> int:
    return sum(
        path.stat().st_size for path in store.rglob("*") if path.is_file() and path.name != "zarr.json"
    )
