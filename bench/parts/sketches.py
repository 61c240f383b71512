"""Histograms of tensors: the kernel against numpy, and what they cost an ingest in time and bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measure import Measure, Ratio, in_turns, seconds_each
from bench.parts.kernel import array_of
from bench.setting import Setting
from bench.stages import Stages, ingest_here
from workers.arrays import histogram_kernels, kernels
from workers.model import MIB

#: What histograms may cost, of processor time and of stored bytes.
_MOST_TIME, _MOST_BYTES = 1.08, 1.02


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield the rate of the kernel, and the ratio of an ingest with histograms to one without."""
    kernels.warm_up()
    yield from _kernel(setting)
    sizes: dict[bool, list[float]] = {False: [], True: []}

    def alone(*, sketches: bool) -> float:
        with setting.target(setting.fast) as target:
            started = time.process_time()
            summaries = ingest_here(setting.load.directory, target, Stages(), sketches=sketches)
            elapsed = time.process_time() - started
        sizes[sketches].append(float(sum(summary.stored_bytes for summary in summaries)))
        return elapsed

    alone(sketches=True)  # warm-up, not measured
    # A ratio of a few hundredths needs more rounds than others.
    times = in_turns(
        3 * setting.rounds, {"with": lambda: alone(sketches=True), "without": lambda: alone(sketches=False)}
    )
    name = "processor time of an ingest with histograms, one process, no Dask"
    yield Measure(
        name, "without histograms", "s", times["with"], times["without"], Ratio.SHARE, floor=_MOST_TIME
    )
    yield Measure(
        "stored bytes with histograms",
        "without histograms",
        "bytes",
        (sizes[True][-1],),
        (sizes[False][-1],),
        Ratio.SHARE,
        floor=_MOST_BYTES,
    )


def _kernel(setting: Setting) -> Iterator[Measure]:
    for dtype in (np.float32, np.float64):
        values = array_of(dtype, MIB)
        tables = histogram_kernels.Counts()
        times = in_turns(
            setting.rounds,
            {
                "ours": lambda v=values, t=tables: (
                    1e3  # type: ignore[misc]
                    * seconds_each(lambda: histogram_kernels.count_floats(v, t))
                ),
                "numpy": lambda v=values: 1e3 * seconds_each(lambda: numpy_histogram(v)),  # type: ignore[misc]
            },
        )
        name = f"histogram of {values.dtype.name}, 1 MiB"
        yield Measure(name, "the same with numpy", "ms", times["ours"], times["numpy"], floor=8.0)


def numpy_histogram(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return how many elements are in each power of two, by sign: (512,)."""
    finite = values[np.isfinite(values) & (values != 0)]
    mantissa, exponent = np.frexp(finite)
    place = np.clip(exponent + 126 - (np.abs(mantissa) == 0.5), 0, 254) + 256 * (finite < 0)
    return np.bincount(place, minlength=512)
