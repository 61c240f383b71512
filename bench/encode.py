"""Encode packed arrays with one encoder, in a separate process: `python -m bench.encode ENCODER ...`.

Each run has its own process, because thread pools are made once, for the cores of that moment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from workers.model import MIB
from workers.store import metadata
from workers.store.model import ArraySpec
from workers.store.objects import NewObject
from workers.store.opening import open_objects, resolve
from workers.store.packed.shards import ShardPacker

#: What malloc does with freed megabytes. Workers that a command starts keep them. Other
#: processes may return them, depending on the state of their heap; each encoded chunk then costs new pages.
MALLOC = {
    "keeps": {"MALLOC_TRIM_THRESHOLD_": str(16 * MIB), "MALLOC_MMAP_THRESHOLD_": str(4 * MIB)},
    "default": {},
}
ENCODERS = ("ours", "zarr-python", "zarrs")


@dataclass(frozen=True, slots=True)
class Packed:
    """One packed array: its grid, and its payloads without gaps between them."""

    spec: ArraySpec
    nbytes: tuple[int, ...]
    """The size of each payload."""
    data: npt.NDArray[np.uint8]


def write_packed(directory: Path, arrays: Sequence[Packed]) -> None:
    """Write arrays to a new directory for `run`."""
    directory.mkdir()
    for number, packed in enumerate(arrays):
        packed.data.tofile(directory / f"{number}.bin")
    facts = [{"spec": asdict(packed.spec), "nbytes": packed.nbytes} for packed in arrays]
    (directory / "arrays.json").write_text(json.dumps(facts))


def read_packed(directory: Path) -> list[Packed]:
    """Return the arrays that `write_packed` wrote."""
    facts = json.loads((directory / "arrays.json").read_text())
    return [
        Packed(
            ArraySpec(**packed["spec"]),
            tuple(packed["nbytes"]),
            np.fromfile(directory / f"{number}.bin", np.uint8),
        )
        for number, packed in enumerate(facts)
    ]


@dataclass(frozen=True, slots=True)
class EncodeTimes:
    """How long one run took."""

    wall_s: float
    processor_s: float
    """The sum over all threads."""


def run(encoder: str, cores: int, malloc: str, source: Path, target: Path) -> EncodeTimes:
    """Encode everything below `source` into shards below `target`."""
    command = [sys.executable, "-m", __spec__.name, encoder, str(cores), str(source), str(target)]
    root = Path(__file__).parents[1]
    variables = {**os.environ, **MALLOC[malloc]}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, env=variables)
    return EncodeTimes(**json.loads(done.stdout))


def encode(encoder: str, arrays: Sequence[Packed], target: Path) -> EncodeTimes:
    """Encode payloads in memory as shards below `target`."""
    if encoder == "ours":
        return _ours(arrays, target)
    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"} if encoder == "zarrs" else {}
    with zarr.config.set(pipeline):
        return _with_zarr(arrays, target)


def _ours(arrays: Sequence[Packed], target: Path) -> EncodeTimes:
    objects = open_objects(resolve(str(target)))
    times = _clock()
    for packed in arrays:

        def create(shard: int, path: str = packed.spec.path) -> NewObject:
            return objects.create(f"{path}/c/{shard}")

        with ShardPacker(packed.spec, 0, create) as packer:
            for payload in _payloads(packed):
                packer.append(payload.data)
    return times()


def _with_zarr(arrays: Sequence[Packed], target: Path) -> EncodeTimes:
    opened = []
    for packed in arrays:
        size = packed.data.size // packed.spec.itemsize
        path = target / packed.spec.path
        path.mkdir(parents=True)
        (path / "zarr.json").write_bytes(metadata.encode(metadata.packed_array(packed.spec, size)))
        opened.append((packed, zarr.open_array(path, mode="r+")))
    times = _clock()
    for packed, array in opened:
        start = 0
        for values in _shards(packed, array.dtype):
            # A whole shard at a time: zarr would read and rewrite a shard for each part of it.
            array[start : start + values.size] = values
            start += values.size
    return times()


def _clock() -> Callable[[], EncodeTimes]:
    """Start a clock; return a function that returns the time since then."""
    wall_s, processor_s = time.perf_counter(), time.process_time()
    return lambda: EncodeTimes(time.perf_counter() - wall_s, time.process_time() - processor_s)


def _payloads(packed: Packed) -> Iterator[npt.NDArray[np.uint8]]:
    start = 0
    for nbytes in packed.nbytes:
        yield packed.data[start : start + nbytes]
        start += nbytes


def _shards(packed: Packed, dtype: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements of each shard: payloads in order, without gaps, as our packer joins them."""
    left = packed.data.size
    shard = np.empty(min(packed.spec.shard_nbytes, left), np.uint8)
    filled = 0
    for payload in _payloads(packed):
        rest = payload
        while rest.size:
            take = min(rest.size, shard.size - filled)
            shard[filled : filled + take] = rest[:take]
            filled += take
            rest = rest[take:]
            if filled == shard.size:
                yield shard.view(dtype)
                left -= filled
                filled = 0
                shard = shard[: min(packed.spec.shard_nbytes, left)]


def main() -> None:
    """Encode in this process, on as many cores as the command line says, and print the times as JSON."""
    encoder, cores, source, target = sys.argv[1:]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(cores) :])
    arrays = read_packed(Path(source))
    encode(encoder, [_first(packed) for packed in arrays], Path(target) / "warm-up")
    print(json.dumps(asdict(encode(encoder, arrays, Path(target) / "store"))))


def _first(packed: Packed) -> Packed:
    """Return an array with only the first payload, for a warm-up."""
    return Packed(packed.spec, packed.nbytes[:1], packed.data[: packed.nbytes[0]])


if __name__ == "__main__":
    main()
