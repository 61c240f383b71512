"""The compiled statistics against numpy: one thread, arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bench.measure import Measure, Table, in_turns, seconds_each, shown
from bench.numpy_statistics import numpy_statistics
from bench.setting import Setting
from workers.arrays.compiled import kernels
from workers.arrays.statistics import summarise
from workers.model import MIB

#: Array sizes: a common tensor that fits the cache; a chunk of the store; far more than any cache.
_SIZES = {"128 KiB": MIB // 8, "1 MiB": MIB, "64 MiB": 64 * MIB}
_FLOATS: tuple[Any, ...] = (np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
_OTHER_TYPES: tuple[Any, ...] = (*_FLOATS, np.int64, np.int32, np.int16, np.int8, np.bool_)


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield times for float32, and rates for other types."""
    kernels.warm_up()
    for size, nbytes in _SIZES.items():
        values = array_of(np.float32, nbytes)
        assert_equal(values)
        times = in_turns(
            setting.rounds,
            {
                "ours": lambda values=values: 1e3 * seconds_each(lambda: summarise(values)),  # type: ignore[misc]
                "numpy": lambda values=values: 1e3 * seconds_each(lambda: numpy_statistics(values)),  # type: ignore[misc]
                "sum": lambda values=values: 1e3 * seconds_each(lambda: np.sum(values)),  # type: ignore[misc]
            },
        )
        name = f"statistics of float32, {size}"
        yield Measure(name, "the same with numpy", "ms", times["ours"], times["numpy"], floor=8.0)
        yield Measure(name, "np.sum alone", "ms", times["ours"], times["sum"], floor=0.35)
    yield _types()


def array_of(dtype: Any, nbytes: int) -> npt.NDArray[Any]:
    """Return an array of `nbytes` bytes with normally distributed values, a tenth of them zero."""
    rng = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    values = rng.standard_normal(nbytes // dtype.itemsize, np.float32)
    values[rng.random(values.size, np.float32) < 0.1] = 0
    made: npt.NDArray[Any] = (values * 20 if dtype.kind == "i" else values).astype(dtype)
    return made


def assert_equal(values: npt.NDArray[Any]) -> None:
    """Check that both compute the same statistics."""
    np.testing.assert_allclose(summarise(values).as_row(), numpy_statistics(values), rtol=1e-6, atol=1e-9)


def _types() -> Table:
    rows = []
    for dtype in _OTHER_TYPES:
        values = array_of(dtype, MIB)
        wide = values.astype(np.float32) if values.dtype.kind == "V" else values
        ours = seconds_each(lambda values=values: summarise(values))  # type: ignore[misc]
        numpys = seconds_each(lambda wide=wide: numpy_statistics(wide))  # type: ignore[misc]
        rate = values.nbytes / 1e9
        rows.append((values.dtype.name, shown(rate / ours), shown(rate / numpys), shown(numpys / ours)))
    return Table(
        "Statistics of other types, 1 MiB (GB/s)",
        ("type", "ours", "numpy", "ratio"),
        tuple(rows),
        note="numpy gets bfloat16 and float8 as float32.",
    )
