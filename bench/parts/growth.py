"""How everything grows with ranks, steps and tensors, one axis at a time: processor time, memory, requests.

Each command runs in a copy of this process, so what it takes to start is not counted. Commits have statistics
and no elements, but those of the dumps that are ingested; requests are those of the process of the command.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]  # it has none

import ingest.cli
from bench.load import build_small
from bench.measure import Table, shown
from bench.running import processor_s
from bench.setting import Setting
from bench.stages import as_a_command
from bench.steps import commit_run
from bench.viewers import Connection
from ingest.layouts.detect import find_dump
from tests.cli import start
from tests.servers.process import free_port, listens
from workers.store.backends.local import LocalObjects

#: Ranks, steps and tensors from which one axis grows, of stores and of dumps.
_BASE, _QUICK_BASE = (2, 4, 20), (4, 4, 20)
_AXES = {"ranks": (8, 64, 512), "steps": (10, 100, 1000), "tensors": (100, 1000, 10_000)}
_DUMPED = {"ranks": (2, 16, 128), "steps": (10, 80, 640), "tensors": (100, 800, 6400)}
_QUICK = {"ranks": (2, 8), "steps": (4, 16), "tensors": (20, 80)}
#: What is asked of stores of dumps, which have elements, and of those of statistics.
_OF_ELEMENTS = ("layout", "audit", "verify")
_COMMANDS: Mapping[str, Sequence[str]] = {
    "consolidate": ("consolidate",),
    "ls": ("ls",),
    "find": ("find", "--consolidated", "--where", "nan_count > 0"),
    "anomalies": ("anomalies",),
    "origin": ("origin",),
    "trend": ("trend", "MatMul.op7.output.0"),
    "heatmap": ("heatmap", "--stat", "nan"),
    "verify": ("verify",),
    "gc": ("gc", "--older-than", "30d"),
}
#: Up to this exponent, what grows is taken to be linear: caches get smaller than what they hold.
_LINEAR = 1.15
#: Exit codes of an answer: done, partly done, differences found.
_ANSWERED = {0, 4, 5}


class Cost(NamedTuple):
    """What a piece of work took."""

    seconds: float
    """Of processor time, in all its processes."""
    mb: float
    """By which the memory of its process grew."""
    requests: int
    """Objects that were read or written, and listings."""


def measure(setting: Setting) -> Iterator[Table]:
    """Yield a table for each axis."""
    axes, dumped = (_QUICK, _QUICK) if setting.quick else (_AXES, _DUMPED)
    base = _QUICK_BASE if setting.quick else _BASE
    for number, axis in enumerate(axes):
        rows: dict[str, list[tuple[int, Cost]]] = {}
        for kind, sizes in (("dump", dumped[axis]), ("store", axes[axis])):
            for size in sizes:
                shape = [size if own == number else other for own, other in enumerate(base)]
                with setting.target(setting.fast) as directory:
                    costs = _of_dump(directory, *shape) if kind == "dump" else _of_store(directory, *shape)
                    for name, cost in costs:
                        rows.setdefault(name, []).append((size, cost))
        where = " x ".join("n" if own == number else str(size) for own, size in enumerate(base))
        yield Table(
            f"Growth with {axis}: ranks x steps x tensors = {where}",
            (axis, "processor s", "MB more", "requests", "exponent of time, of requests"),
            tuple(_row(name, costs) for name, costs in rows.items()),
        )


def _row(name: str, costs: Sequence[tuple[int, Cost]]) -> tuple[str, ...]:
    sizes, figures = [size for size, _ in costs], [cost for _, cost in costs]
    exponents = [_exponent(sizes[-2:], [cost[place] for cost in figures[-2:]]) for place in (0, 2)]
    above = " (above linear)" if max(exponents) > _LINEAR else ""
    return (
        f"{name}: {', '.join(map(str, sizes))}",
        *(", ".join(shown(cost[place]) for cost in figures) for place in range(3)),
        f"{exponents[0]:.2f}, {exponents[1]:.2f}{above}",
    )


def _exponent(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """Return by which power of its size the larger of two took more."""
    if min(figures) <= 0:
        return 0.0
    return math.log(figures[1] / figures[0]) / math.log(sizes[1] / sizes[0])


def _of_dump(directory: Path, ranks: int, steps: int, tensors: int) -> Iterator[tuple[str, Cost]]:
    dump, store = directory / "dump", directory / "run.zarr"
    build_small(dump, ranks=ranks, steps=steps, files=tensors)
    yield "scan", cost_of(lambda: find_dump(dump).scan({}))
    yield "ingest", cost_of(lambda: _command("ingest", str(dump), "--store", str(store)))
    for name in _OF_ELEMENTS:
        yield f"{name}, of elements", cost_of(lambda name=name: _command(name, str(store)))  # type: ignore[misc]


def _of_store(store: Path, ranks: int, steps: int, tensors: int) -> Iterator[tuple[str, Cost]]:
    names = [f"op{number}" for number in range(tensors)]
    make = partial(commit_run, str(store), range(ranks), names=names, born=steps - 1, has_elements=False)
    yield "commit", cost_of(lambda: make(range(steps)))
    for name, words in _COMMANDS.items():
        yield name, cost_of(lambda words=words: _command(words[0], str(store), *words[1:]))  # type: ignore[misc]
        if name == "consolidate":
            make([steps])
            yield "consolidate a step more", cost_of(lambda: _command("consolidate", str(store)))
    yield "first view of the page", _first_view(store)


def _first_view(store: Path) -> Cost:
    """Return what a new server takes until it shows the incidents."""
    port = free_port()
    with start("serve", str(store), "--listen", f"127.0.0.1:{port}") as server:
        server.wait_until(lambda: listens(port), timeout_s=120)
        started, held = processor_s(server.pid), psutil.Process(server.pid).memory_info().rss
        with Connection(f"http://127.0.0.1:{port}") as connection:
            while connection.get(f"/runs/{store.name}/incidents")[0] == 503:
                time.sleep(0.1)
        grown = psutil.Process(server.pid).memory_info().rss - held
        return Cost(processor_s(server.pid) - started, grown / 1e6, 0)


def cost_of(run: Callable[[], object]) -> Cost:
    """Do something in a copy of this process; return what it took."""
    here, there = os.pipe()
    if not (child := os.fork()):
        os.close(here)
        status = 1
        try:
            counted = _count_requests()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            nothing = Path(os.devnull).open("w")  # noqa: SIM115  (the process ends)
            with redirect_stdout(nothing), redirect_stderr(nothing), as_a_command():
                run()
            used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            seconds = sum(one.ru_utime + one.ru_stime for one in used)
            os.write(there, json.dumps((seconds, (used[0].ru_maxrss - before) / 1024, counted[0])).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    os.close(there)
    with os.fdopen(here) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    assert told, "the work ended with an error"
    return Cost(*json.loads(told))


def _command(*words: str) -> None:
    sys.argv = ["dump-ingest", *words]
    try:
        ingest.cli.main()
    except SystemExit as ended:
        assert ended.code in _ANSWERED, (ended.code, words)  # noqa: PT017


def _count_requests() -> list[int]:
    """Count what is asked of directories from now on; return the counter. Each of many objects counts."""
    counted = [0]

    def count(name: str) -> None:
        original = getattr(LocalObjects, name)

        def counting(self: LocalObjects, *arguments: Any) -> object:
            counted[0] += 1
            return original(self, *arguments)

        setattr(LocalObjects, name, counting)

    for name in ("put", "create", "get", "get_range", "delete", "children", "sizes", "listed"):
        count(name)
    return counted
