"""Two ranks against one that has all of a model: time, requests and memory, against reading all of it.

The model is a row of matrices of 256 MiB in float32, of random bits, which no codec makes smaller. The ranks
of A have halves of it along one axis or the other; the single rank of B has all of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Measure, Ratio
from bench.parts.comparing import numpy_metrics
from bench.parts.memory import peak_memory
from bench.setting import Setting, ingest, workers
from ingest.api import open_store
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from workers.arrays.compiled import kernels
from workers.model import MIB
from workers.store.backends.wrappers import ObservedObjects

_SHAPE = (8192, 8192)
_NBYTES = 256 * MIB
_LIMIT_MIB = 1024.0
_REQUESTS = ("get", "get_many", "get_range", "children", "sizes")


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield seconds of processor time, requests, and the peak of memory."""
    count = 1 if setting.quick else 8
    with setting.target() as dumps, setting.target() as a, setting.target() as b:
        build(dumps, count)
        with workers() as client:
            for name, store in (("a", a), ("b", b)):
                ingest(client, dumps / name, store, sketches=True)
        ours = [_run("ours", a, b) for _ in range(setting.rounds)]
        all_of_it = [_run("all", a, b) for _ in range(setting.rounds)]
    what = f"two ranks against one, {count * _NBYTES // MIB} MiB"
    for field, unit in (("seconds", "s"), ("requests", "requests")):
        own, other = (tuple(run[field] for run in runs) for runs in (ours, all_of_it))
        yield Measure(f"{what}: {field}", "read all, metrics in numpy", unit, own, other)
    peaks = tuple(run["peak"] / MIB for run in ours)
    limits = (_LIMIT_MIB,) * len(peaks)
    yield Measure(f"{what}: peak memory", "1 GiB", "MiB", peaks, limits, Ratio.SHARE, floor=1.0)


def build(directory: Path, count: int) -> None:
    """Write the dumps `a` and `b`."""
    for number in range(count):
        rng = np.random.default_rng(number)
        bits = rng.integers(0, 2**23, _SHAPE, np.uint32) | rng.integers(120, 130, _SHAPE, np.uint32) << 23
        whole = bits.view(np.float32)
        halves = np.split(whole, 2, axis=number % 2)
        for side, rank, values in (("a", 0, halves[0]), ("a", 1, halves[1]), ("b", 0, whole)):
            target = directory / side / f"rank_{rank}" / "Net" / "0" / "0"
            target.mkdir(parents=True, exist_ok=True)
            name = f"Parameter.layer{number}_weight.0.0.{1_700_000_000_000_000 + number}.output.0"
            np.save(target / f"{name}.DefaultFormat.Float32.npy", np.ascontiguousarray(values))


def _run(what: str, a: Path, b: Path) -> dict[str, float]:
    """Run a contender in a process of its own."""
    command = [sys.executable, "-m", __name__, what, str(a), str(b)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _ours(a: str, b: str) -> None:
    comparison = compare(a, b, keep_equal=True)
    assert {row.verdict for row in comparison.tensors} == {Verdict.EQUAL}
    assert {row.held.placement for row in comparison.tensors if row.held} <= {"shard 0", "shard 1"}


def _all_of_it(a: str, b: str) -> None:
    """Read every tensor of both sides, put those of A together, and compare them with numpy."""
    stores = open_store(a), open_store(b)
    for tensor in stores[1].tensors(rank=0, step=0):
        pieces = [stores[0].tensors(tensor.name, rank=rank, step=0)[0].read() for rank in (0, 1)]
        whole = tensor.read()
        axis = 0 if pieces[0].shape[1] == whole.shape[1] else 1
        numpy_metrics(np.concatenate(pieces, axis), whole)


def _counted(requests: list[str]) -> None:
    """Count what is requested from stores from now on."""
    for name in _REQUESTS:
        setattr(ObservedObjects, name, _counting(requests, getattr(ObservedObjects, name)))


def _counting(requests: list[str], method: Callable[..., Any]) -> Callable[..., Any]:
    def counted(store: ObservedObjects, requested: Any = "", *rest: Any) -> Any:
        requests.extend([requested] if isinstance(requested, str) else list(requested))
        return method(store, requested, *rest)

    return counted


def main() -> None:
    """Run one contender, and print its figures."""
    what, a, b = sys.argv[1:]
    kernels.warm_up()
    requests: list[str] = []
    _counted(requests)
    started = time.process_time()
    (_ours if what == "ours" else _all_of_it)(a, b)
    seconds = time.process_time() - started
    print(json.dumps({"seconds": seconds, "requests": len(requests), "peak": peak_memory()}))


if __name__ == "__main__":
    main()
