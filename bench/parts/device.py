"""Tensors in the layouts of accelerators: DumpData to host order, against npy files of the same bytes.

Two things are measured: reading one tensor, against `np.load`; and converting files for a store, including
digests, statistics and encoding, against converting npy files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measure import Measure, in_turns, seconds_each
from bench.setting import Setting
from bench.stages import Stages, plans
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from workers.arrays import device_format
from workers.arrays.device_format import DeviceLayout, to_device
from workers.dump.formats.dump_data import read_headers
from workers.tasks.convert import convert

#: How many files are converted for a store.
_FILES = 4
#: Format, host shape, device shape: activations, weights of a convolution, a matrix; about 16 MiB each.
_CASES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("NC1HWC0", (32, 64, 64, 64), (32, 4, 64, 64, 16)),
    ("NC1HWC0", (32, 60, 64, 64), (32, 4, 64, 64, 16)),
    ("FRACTAL_NZ", (4096, 2048), (128, 256, 16, 16)),
    ("FRACTAL_Z", (1024, 896, 3, 3), (504, 64, 16, 16)),
)


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times for float16 in the page cache."""
    for name, shape, device_shape in _CASES:
        layout = DeviceLayout(name, device_shape)
        host = np.random.default_rng(0).standard_normal(shape, np.float32).astype(np.float16)
        device = to_device(host, layout)
        with setting.target() as directory:
            directory.mkdir()
            file, npy = directory / "dump", directory / "bytes.npy"
            tensor = Tensor(device.tobytes(), DATA_TYPES["float16"], device_shape, shape, FORMAT_CODES[name])
            file.write_bytes(dump_data(outputs=[tensor]))
            np.save(npy, device)
            assert np.array_equal(decode(file), host)
            times = in_turns(
                setting.rounds,
                {"ours": _each(decode, file), "other": _each(np.load, npy)},
            )
        shown = "x".join(map(str, shape))
        yield Measure(
            f"DumpData to host, {name}, float16 {shown}",
            "np.load, same bytes",
            "ms",
            times["ours"],
            times["other"],
        )
        yield _converted(setting, name, layout, shape)


def _converted(setting: Setting, name: str, layout: DeviceLayout, shape: tuple[int, ...]) -> Measure:
    """Compare converting DumpData files with converting npy files of the same bytes."""
    code = FORMAT_CODES[name]
    with setting.target() as directory:
        dumps = {"ours": directory / "bin", "other": directory / "npy"}
        places = {
            "ours": dumps["ours"] / "20260101000000" / "0" / "Net" / "0" / "0",
            "other": dumps["other"] / "rank_0" / "Net" / "0" / "0",
        }
        for place in places.values():
            place.mkdir(parents=True)
        for number in range(_FILES):
            values = np.random.default_rng(number).standard_normal(shape, np.float32).astype(np.float16)
            device = to_device(values, layout)
            tensor = Tensor(device.tobytes(), DATA_TYPES["float16"], layout.shape, shape, code)
            (places["ours"] / f"Op.Op-op{number}.0.0.{number}").write_bytes(dump_data(outputs=[tensor]))
            np.save(places["other"] / f"Op.Op-op{number}.0.0.{number}.output.0.ND.npy", device)
        jobs = {
            who: [job for plan in plans(dump, directory / f"{who}.zarr", Stages()) for job in plan.jobs]
            for who, dump in dumps.items()
        }

        def run(who: str) -> Callable[[], float]:
            return lambda: seconds_each(lambda: [convert(job) for job in jobs[who]])

        times = in_turns(setting.rounds, {who: run(who) for who in jobs})
    shown = "x".join(map(str, shape))
    return Measure(
        f"DumpData into a store, {name}, {_FILES} of float16 {shown}",
        "npy into a store, same bytes",
        "s",
        times["ours"],
        times["other"],
        floor=0.5,
    )


def decode(path: Path) -> npt.NDArray[Any]:
    """Read the only tensor of a DumpData file, in host order."""
    with path.open("rb", buffering=0) as file:

        def read(offset: int, nbytes: int) -> bytes:
            return os.pread(file.fileno(), nbytes, offset)

        (header,) = read_headers(read, path.stat().st_size)
        assert header.device is not None
        payload = np.empty(header.nbytes, np.uint8)
        file.seek(header.offset)
        file.readinto(payload.data)
    return device_format.to_host(payload, header.device, header.shape, header.element)


def _each(read: Callable[[Path], object], path: Path) -> Callable[[], float]:
    return lambda: 1e3 * seconds_each(lambda: read(path))
