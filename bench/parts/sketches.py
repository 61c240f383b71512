"""Sketches of tensors: the kernels against numpy, and what they cost an ingest in time and bytes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measure import Measure, Ratio, in_turns, seconds_each
from bench.parts.kernel import array_of
from bench.parts.whole import ingest_cost, link_steps
from bench.setting import Setting, environment
from bench.stages import Stages, ingest_here
from workers.arrays.compiled import kernels
from workers.arrays.marginals import MarginalScope, marginals_of
from workers.model import MIB

#: What sketches may cost, of processor time and of stored bytes.
_MOST_TIME, _MOST_BYTES = 1.08, 1.02
#: By name, whether an ingest stores histograms, and of which tensors marginals.
_KINDS = {
    "without": (False, MarginalScope.NONE),
    "histograms": (True, MarginalScope.NONE),
    "histograms, and marginals of large tensors": (True, MarginalScope.LARGE),
    "histograms, and all marginals": (True, MarginalScope.ALL),
}
#: Not the default; docs/design/020-sketches.md says what it costs.
_ALL = "histograms, and all marginals"


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield the rates of the kernels, and the ratios of an ingest with sketches to one without."""
    kernels.warm_up()
    yield from _kernels(setting)
    sizes: dict[str, float] = {}

    def alone(name: str) -> float:
        with setting.target(setting.fast) as target:
            gc.collect()  # a collection of what an earlier ingest left takes as long as what is measured
            started = time.process_time()
            sketches, marginals = _KINDS[name]
            dump = setting.load.directory
            summaries = ingest_here(dump, target, Stages(), sketches=sketches, marginals=marginals)
            elapsed = time.process_time() - started
        sizes[name] = float(sum(summary.stored_bytes for summary in summaries))
        return elapsed

    alone(_ALL)  # warm-up, not measured
    # A ratio of a few hundredths needs more rounds than others.
    times = in_turns(
        3 * setting.rounds,
        {name: lambda name=name: alone(name) for name in _KINDS},  # type: ignore[misc]
    )
    for name in list(_KINDS)[1:]:
        yield _more_time(f"processor time of an ingest with {name}, one process, no Dask", name, times)
        yield Measure(
            f"stored bytes with {name}",
            "without",
            "bytes",
            (sizes[name],),
            (sizes["without"],),
            Ratio.SHARE,
            floor=_MOST_BYTES,
        )
    more = 1 if setting.quick else 5
    yield from _commands(setting, "722 MB", setting.load.directory, more * setting.rounds)
    if not setting.quick:
        with setting.target() as dump:
            link_steps(setting.load.directory, dump)
            yield from _commands(setting, "4.3 GB", dump, 2 * setting.rounds)


def _more_time(title: str, name: str, times: Mapping[str, Sequence[float]]) -> Measure:
    most = None if name == _ALL else _MOST_TIME
    return Measure(
        title, "without", "s", tuple(times[name]), tuple(times["without"]), Ratio.SHARE, floor=most
    )


def _commands(setting: Setting, size: str, dump: Path, rounds: int) -> Iterator[Measure]:
    """Yield what sketches add to the processor time of the whole command, over all of its processes."""

    def command(name: str) -> float:
        sketches, marginals = _KINDS[name]
        switches = {"DUMP_INGEST_SKETCHES": str(sketches), "DUMP_INGEST_MARGINALS": marginals}
        with setting.target(setting.fast) as store, environment(switches):
            return ingest_cost(dump, store).processor

    command(_ALL)  # warm-up, not measured
    times = in_turns(rounds, {name: lambda name=name: command(name) for name in _KINDS})  # type: ignore[misc]
    for name in list(_KINDS)[1:]:
        title = f"processor time of `dump-ingest ingest` with {name}, {size}, all processes"
        yield _more_time(title, name, times)


def _kernels(setting: Setting) -> Iterator[Measure]:
    for dtype in (np.float32, np.float64):
        values = array_of(dtype, MIB)
        tables = kernels.Counts()
        yield _rates(
            setting,
            f"histogram of {values.dtype.name}, 1 MiB",
            lambda v=values, t=tables: kernels.count_floats(v, t),  # type: ignore[misc]
            lambda v=values: numpy_histogram(v),  # type: ignore[misc]
            8.0,
        )
        matrix = values.reshape(512, -1)
        yield _rates(
            setting,
            f"marginals of both axes of {matrix.dtype.name}, 1 MiB",
            lambda m=matrix: marginals_of(m, (0, 1)),  # type: ignore[misc]
            lambda m=matrix: numpy_marginals(m),  # type: ignore[misc]
            2.0,
        )


def _rates(
    setting: Setting, name: str, ours: Callable[[], object], numpy: Callable[[], object], floor: float
) -> Measure:
    """Return a measure of what runs over 1 MiB, with our rate and that of numpy in its name."""
    times = in_turns(
        setting.rounds,
        {"ours": lambda: 1e3 * seconds_each(ours), "numpy": lambda: 1e3 * seconds_each(numpy)},
    )
    rates = (MIB / 1e6 / min(times[who]) for who in ("ours", "numpy"))
    title = f"{name} ({{:.3g}} and {{:.2g}} GB/s)".format(*rates)
    return Measure(title, "the same with numpy", "ms", times["ours"], times["numpy"], floor=floor)


def numpy_marginals(matrix: npt.NDArray[Any]) -> list[npt.NDArray[np.float64]]:
    """Return sum, norm and largest magnitude along both axes, in float64."""
    made, magnitudes = [], np.abs(matrix)
    for axis in (0, 1):
        made += [
            matrix.sum(axis=axis, dtype=np.float64),
            np.sqrt(np.square(matrix, dtype=np.float64).sum(axis=axis)),
            magnitudes.max(axis=axis).astype(np.float64),
        ]
    return made


def numpy_histogram(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return how many elements are in each power of two, by sign: (512,)."""
    finite = values[np.isfinite(values) & (values != 0)]
    mantissa, exponent = np.frexp(finite)
    place = np.clip(exponent + 126 - (np.abs(mantissa) == 0.5), 0, 254) + 256 * (finite < 0)
    return np.bincount(place, minlength=512)
