"""Tensors in the layouts of accelerators: DumpData to host order, against npy of the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measure import Measure, in_turns, seconds_each
from bench.setting import Setting
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from workers.formats import device_format
from workers.formats.device_format import to_device
from workers.formats.dump_data import read_headers
from workers.formats.header import DeviceLayout

#: Format, host shape, device shape: activations, weights of a convolution, a matrix; about 16 MiB each.
_CASES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("NC1HWC0", (32, 64, 64, 64), (32, 4, 64, 64, 16)),
    ("NC1HWC0", (32, 60, 64, 64), (32, 4, 64, 64, 16)),
    ("FRACTAL_NZ", (4096, 2048), (128, 256, 16, 16)),
    ("FRACTAL_Z", (1024, 896, 3, 3), (504, 64, 16, 16)),
)


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times for float16, from the page cache."""
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


def decode(path: Path) -> npt.NDArray[Any]:
    """Read the one tensor of a DumpData file, in the order of its axes on the host."""
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
