"""Encode packed arrays by one encoder, in a process of its own: `python -m bench.encode ENCODER ...`.

A process for each run, because thread pools are made once and for the cores that are there then.
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

from workers.model import MIB
from workers.store import metadata
from workers.store.model import ArraySpec

#: What malloc does with freed megabytes. Workers that `ingest.dispatch.cluster` starts keep them; other processes give
#: them back, or not, as their heap happens to lie, and each encoded chunk then costs fresh pages.
MALLOC = {
    "keeps": {"MALLOC_TRIM_THRESHOLD_": str(16 * MIB), "MALLOC_MMAP_THRESHOLD_": str(4 * MIB)},
    "default": {},
}
ENCODERS = ("ours", "zarr-python", "zarrs")


@dataclass(frozen=True, slots=True)
class Packed:
    """One packed array: its grid, and its payloads one behind the other."""

    spec: ArraySpec
    nbytes: tuple[int, ...]
    """Of each payload."""
    data: npt.NDArray[np.uint8]


def write_packed(directory: Path, arrays: Sequence[Packed]) -> None:
    """Write arrays to where `run` finds them."""
    directory.mkdir()
    for number, one in enumerate(arrays):
        one.data.tofile(directory / f"{number}.bin")
    facts = [{"spec": asdict(one.spec), "nbytes": one.nbytes} for one in arrays]
    (directory / "arrays.json").write_text(json.dumps(facts))


def read_packed(directory: Path) -> list[Packed]:
    """Read what `write_packed` wrote."""
    facts = json.loads((directory / "arrays.json").read_text())
    return [
        Packed(
            ArraySpec(**one["spec"]), tuple(one["nbytes"]), np.fromfile(directory / f"{number}.bin", np.uint8)
        )
        for number, one in enumerate(facts)
    ]


@dataclass(frozen=True, slots=True)
class Took:
    """What one run took."""

    wall_s: float
    processor_s: float
    """Of all threads together."""


def run(encoder: str, cores: int, malloc: str, source: Path, target: Path) -> Took:
    """Encode everything below `source` into shards below `target`."""
    command = [sys.executable, "-m", __spec__.name, encoder, str(cores), str(source), str(target)]
    root = Path(__file__).parents[1]
    variables = {**os.environ, **MALLOC[malloc]}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, env=variables)
    return Took(**json.loads(done.stdout))


def encode(encoder: str, arrays: Sequence[Packed], target: Path) -> Took:
    """Turn payloads in memory into shards."""
    if encoder == "ours":
        return _ours(arrays, target)
    import zarr

    pipeline = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"} if encoder == "zarrs" else {}
    with zarr.config.set(pipeline):
        return _with_zarr(arrays, target)


def _ours(arrays: Sequence[Packed], target: Path) -> Took:
    from workers.store.opening import open_objects, resolve
    from workers.store.pieces import NewObject
    from workers.store.shards import ShardPacker

    objects = open_objects(resolve(str(target)))
    took = _clock()
    for one in arrays:

        def create(shard: int, path: str = one.spec.path) -> NewObject:
            return objects.create(f"{path}/c/{shard}")

        with ShardPacker(one.spec, 0, create) as packer:
            for payload in _payloads(one):
                packer.append(payload.data)
    return took()


def _with_zarr(arrays: Sequence[Packed], target: Path) -> Took:
    import zarr

    opened = []
    for one in arrays:
        size = one.data.size // one.spec.itemsize
        path = target / one.spec.path
        path.mkdir(parents=True)
        (path / "zarr.json").write_bytes(metadata.encode(metadata.packed_array(one.spec, size)))
        array = zarr.open_array(path, mode="r+")
        opened.append((one, array))
    took = _clock()
    for one, array in opened:
        start = 0
        for values in _shards(one, array.dtype):
            # A whole shard at a time: a part of one would be read and written again.
            array[start : start + values.size] = values
            start += values.size
    return took()


def _clock() -> Callable[[], Took]:
    wall_s, processor_s = time.perf_counter(), time.process_time()
    return lambda: Took(time.perf_counter() - wall_s, time.process_time() - processor_s)


def _payloads(packed: Packed) -> Iterator[npt.NDArray[np.uint8]]:
    start = 0
    for nbytes in packed.nbytes:
        yield packed.data[start : start + nbytes]
        start += nbytes


def _shards(packed: Packed, dtype: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements of each shard, payloads put together as they come, as our packer does it too."""
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
    """Run in a process of its own, on so many cores."""
    encoder, cores, source, target = sys.argv[1:]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(cores) :])
    arrays = read_packed(Path(source))
    encode(encoder, [_first(one) for one in arrays], Path(target) / "warm-up")
    print(json.dumps(asdict(encode(encoder, arrays, Path(target) / "store"))))


def _first(packed: Packed) -> Packed:
    """Return the first payload alone: what is lazy is loaded by it."""
    return Packed(packed.spec, packed.nbytes[:1], packed.data[: packed.nbytes[0]])


if __name__ == "__main__":
    main()
