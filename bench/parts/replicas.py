"""Eight replicas of which 60 % of the bytes are equal, ingested by one command: what is stored of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.costs import footprint
from bench.load import npy_header
from bench.measure import Measure, Ratio
from bench.parts.whole import ingest_cost
from bench.setting import Setting

_RANKS, _TENSORS, _EQUAL = 8, 20, 12
_ELEMENTS = 256 * 1024
_MOST = 0.45


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield the stored bytes, as a share of the raw ones."""
    with setting.target(setting.fast) as dump, setting.target(setting.fast) as store:
        raw = _build(dump)
        ingest_cost(dump, store)
        stored = footprint(store).nbytes
    yield Measure(
        f"{_RANKS} replicas, {_EQUAL / _TENSORS:.0%} equal, one command: stored",
        "raw",
        "MB",
        (stored / 1e6,),
        (raw / 1e6,),
        Ratio.SHARE,
        floor=_MOST,
    )


def _build(dump: Path) -> int:
    """Write one step of all ranks; return its bytes."""
    header = npy_header("<f4", (_ELEMENTS,))
    for rank in range(_RANKS):
        directory = dump / f"rank_{rank}" / "Net" / "0" / "0"
        directory.mkdir(parents=True)
        for number in range(_TENSORS):
            seed = [number, 0 if number < _EQUAL else 1 + rank]
            values = np.random.default_rng(seed).standard_normal(_ELEMENTS, np.float32)
            name = f"Mul.op{number}.0.0.{1000 + number}.output.0.DefaultFormat.Float32.npy"
            (directory / name).write_bytes(header + values.tobytes())
    return _RANKS * _TENSORS * (len(header) + 4 * _ELEMENTS)
