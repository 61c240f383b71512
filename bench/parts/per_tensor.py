"""Ingesting, against writing one Zarr array per tensor: zarr-python, dask with zarr-python, TensorStore.

Each of them reads a tensor, computes its statistics with numpy and its MD5, and writes one array with both as
attributes. They process a sample of the files, every n-th by size, and their times are scaled up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from distributed import Client

from bench.costs import footprint
from bench.measure import Measure, Ratio, in_turns, seconds
from bench.numpy_statistics import numpy_statistics
from bench.setting import WORKERS, Setting, ingest, workers
from workers.arrays.statistics import FIELDS


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times and objects."""
    one_in = 100 if setting.quick else 20
    files = sorted(setting.load.directory.rglob("*.npy"), key=lambda path: (path.stat().st_size, path.name))
    sample = files[one_in // 2 :: one_in]
    scale = len(files) / len(sample)
    objects: list[int] = []
    with workers() as client:

        def into(write: Callable[[Path], object]) -> float:
            with setting.target() as target:
                wall_s = seconds(lambda: write(target))
                objects.append(footprint(target).objects)
                return wall_s

        into(lambda target: ingest(client, setting.load.directory, target))
        into(lambda target: with_dask(client, sample, target))
        with_zarr_python(sample[:2], setting.fast / "warm-up")
        with_tensorstore(sample[:2], setting.fast / "warm-up")
        times = in_turns(
            setting.rounds,
            {
                "ours": lambda: into(lambda target: ingest(client, setting.load.directory, target)),
                "zarr": lambda: scale * into(lambda target: with_zarr_python(sample, target)),
                "dask": lambda: scale * into(lambda target: with_dask(client, sample, target)),
                "tensorstore": lambda: scale * into(lambda target: with_tensorstore(sample, target)),
            },
        )
    ours, *others = objects[-4:]
    share = f"1 file in {one_in}, scaled"
    name = f"ingest, {WORKERS} workers, disk"
    for contender, words, floor in (
        ("zarr", "zarr-python, an array per tensor", 50.0),
        ("dask", f"dask, {WORKERS} workers, an array per tensor", None),
        ("tensorstore", "TensorStore, an array per tensor", None),
    ):
        yield Measure(
            name, f"{words} ({share})", "s", times["ours"], times[contender], floor=floor, note=share
        )
    yield Measure(
        "objects",
        f"zarr-python, an array per tensor ({share})",
        "objects",
        (ours,),
        (scale * others[0],),
        Ratio.SHARE,
    )


def with_zarr_python(files: Sequence[Path], target: Path) -> None:
    """Write an array per tensor with the defaults of zarr-python."""
    root = zarr.open_group(target, mode="a")
    for path in files:
        values, attributes = _read(path)
        root.create_array(path.stem, data=values, attributes=attributes, overwrite=True)


def with_dask(client: Client, files: Sequence[Path], target: Path) -> None:
    """Write the same arrays with one task per file, the simplest way with dask."""
    zarr.open_group(target, mode="a")
    client.gather(client.map(_write_one, files, target=target, pure=False))


def with_tensorstore(files: Sequence[Path], target: Path) -> None:
    """Write an array per tensor, with one chunk each, with the codecs of zarr-python."""
    import tensorstore  # deferred: 0.1 s that the other parts do not have to spend

    for path in files:
        values, attributes = _read(path)
        array = tensorstore.open(
            {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": str(target / path.stem)},
                "metadata": {
                    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": _chunk(values)}},
                    "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 0}}],
                    "attributes": attributes,
                },
            },
            create=True,
            delete_existing=True,
            dtype=values.dtype.name,
            shape=values.shape,
        ).result()
        array.write(values).result()


def _chunk(values: npt.NDArray[Any]) -> list[int]:
    return [max(length, 1) for length in values.shape]


def _write_one(path: Path, target: Path) -> None:
    values, attributes = _read(path)
    zarr.open_group(target, mode="a").create_array(path.stem, data=values, attributes=attributes)


def _read(path: Path) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    values = np.load(path)
    facts = zip(FIELDS, numpy_statistics(values), strict=True)
    return values, {"md5": hashlib.md5(values.data, usedforsecurity=False).hexdigest(), **dict(facts)}
