"""Comparing two ranks of the large profile, against numpy file by file.

Two cases are measured. In the first, two data-parallel ranks share weights, optimizer states, the outputs of
all-reduce, and every file with the same content as one of these; everything else differs. By this rule 52 %
of the files and 35 % of the bytes are equal. Between the ranks of the real dumps in `tests/data`, 59 % of the
tensors (`lenet-4rank`, 37 % of the bytes) and 66 % (`tinybert-2rank`, 53 %) are equal. In the second case,
the two ranks are equal in everything.

All contenders run with the threshold of the garbage collector that every command sets. With that of Python, a
full collection, of the objects of all loaded modules, falls into every second or third round of ours.

With numpy, this is done in two ways: with the metrics that we compute, on whole arrays; and with
`np.array_equal`, the least that can be done, which only tells that two arrays differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from distributed import Client

from bench.load import ProfileRow, build
from bench.measure import Measure, in_turns, seconds
from bench.setting import PROFILE, Setting, ingest, workers
from bench.stages import as_a_command
from ingest.api import open_store
from ingest.questions.compare.result import Comparison
from ingest.questions.compare.run import compare
from workers.arrays.compiled import kernels

Array: TypeAlias = npt.NDArray[Any]

#: What data-parallel ranks have in common: type of the operator, and input or output.
_REPLICATED = {
    *(("Adam", "input"), ("Adam", "output"), ("Parameter", "output"), ("AllReduce", "output")),
    *(("Mul", "input"), ("Mul", "output"), ("Assign", "input"), ("Assign", "output"), ("AssignAdd", "input")),
}
_TIME = re.compile(r"\.\d{16}\.")


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield times on the disk."""
    kernels.warm_up()  # chunks are decoded in this process, too
    with workers() as client:
        times = _times(client, setting, is_replicated)
        name = "compare two data-parallel ranks, one process"
        if not setting.quick:
            yield Measure(name, _METRICS, "s", times["ours"], times["metrics"], floor=5)
        yield Measure(name, _SAME, "s", times["ours"], times["same"])
        times = _times(client, setting, lambda _: True)
        name = "compare two equal ranks, one process"
        if not setting.quick:
            yield Measure(name, _METRICS, "s", times["ours"], times["metrics"], floor=10)
        yield Measure(name, _SAME, "s", times["ours"], times["same"], floor=10)


_METRICS = "np.load both, metrics in numpy"
_SAME = "np.load both, np.array_equal"


def _times(
    client: Client, setting: Setting, replicated: Callable[[ProfileRow], bool]
) -> dict[str, tuple[float, ...]]:
    with setting.target() as dump, setting.target() as store:
        build(PROFILE, dump, ranks=2, replicated=replicated)
        ingest(client, dump, store)
        pairs = file_pairs(dump)
        assert compare_ranks(store).counts.total() == len(pairs)
        contenders = {
            "ours": lambda: seconds(lambda: compare_ranks(store)),
            "same": lambda: seconds(lambda: compare_files(pairs, np.array_equal)),
        }
        if not setting.quick:  # it takes half a minute
            contenders["metrics"] = lambda: seconds(lambda: compare_files(pairs, numpy_metrics))
        with as_a_command():
            return in_turns(setting.rounds, contenders)


def is_replicated(row: ProfileRow) -> bool:
    """Return whether data-parallel ranks share this file."""
    return (row.name.partition(".")[0], "output" if ".output." in row.name else "input") in _REPLICATED


def compare_ranks(store: Path | str) -> Comparison:
    """Open a store, and compare its rank 0 with its rank 1."""
    opened = open_store(store)
    return compare(opened.step(0, 0), opened.step(1, 0))


def file_pairs(dump: Path) -> list[tuple[Path, Path]]:
    """Return the files of rank 0 and rank 1, paired by their names without the time."""
    ranks: list[dict[str, Path]] = [
        {_TIME.sub(".", path.name): path for path in (dump / f"rank_{rank}").rglob("*.npy")}
        for rank in (0, 1)
    ]
    assert ranks[0].keys() == ranks[1].keys()
    return [(path, ranks[1][name]) for name, path in ranks[0].items()]


def compare_files(pairs: list[tuple[Path, Path]], judge: Callable[[Array, Array], object]) -> None:
    """Load both files of each pair, and compare them with `judge`."""
    for a, b in pairs:
        judge(np.load(a), np.load(b))


def numpy_metrics(a: Array, b: Array) -> tuple[float, ...]:
    """Return the metrics as one would write them with numpy; none for equal arrays."""
    if a.tobytes() == b.tobytes() or not a.size:
        return ()
    a, b = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        error = np.abs(a - b)
        relative = np.where(b == 0, np.abs(a) * 2.0**52, error / np.abs(b))
    norm_a, norm_b = np.linalg.norm(a), np.linalg.norm(b)
    return (
        float(error.max()),
        float(relative.max()),
        float(relative.mean()),
        math.sqrt(float(np.mean(error**2))),
        float(a @ b / (norm_a * norm_b or 1.0)),
        float(np.linalg.norm(error) / (norm_b or 1.0)),
        float((relative < 0.001).mean()),
        float((relative < 0.005).mean()),
        float(norm_a / (norm_b or 1.0)),
    )
