"""The consolidated view: a question about all ranks and steps, the cost of adding a step, idle rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from bench.measure import Measure, Ratio, Table, in_turns, median, shown
from bench.setting import WORKERS, Setting
from bench.steps import CountingStore, commit_run
from ingest.api import open_store
from ingest.consolidating.consolidator import Consolidator
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
from workers.model import ceil_div
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve

#: Numbers of ranks, steps and tensors: for the question, and for the run to which steps are appended.
_ASKED = (64, 100, 5000)
_GROWING = (8, 1000, 1000)
_APPENDED = 8
#: Numbers of ranks for rounds in which nothing is new, and how long the store takes to answer each request.
_IDLE = (64, 1024, 10_000)
_LATENCY_S = 0.02
#: Names that one answer to a listing holds.
_PAGE = 1000
_IDLE_ROUNDS = 5
#: Ranks that have a new step when a round begins in which something is new.
_WITH_NEWS = 64


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield time and requests of a question, and the time to append a step early and late."""
    asked = (8, 20, 500) if setting.quick else _ASKED
    growing = (2, 60, 200) if setting.quick else _GROWING
    with setting.target() as store:
        yield from _question(setting, store, *asked)
    with setting.target() as short, setting.target() as long:
        yield _appending(short, long, *growing)
    with setting.target() as store:
        yield _idling(store, (8, 64) if setting.quick else _IDLE)


class _Distant(CountingStore):
    """Answers each request after `_LATENCY_S`; counts requests, and pages of listings."""

    def get(self, key: str) -> bytes | None:
        time.sleep(_LATENCY_S)
        return super().get(key)

    def children(self, prefix: str = "") -> list[str]:
        names = super().children(prefix)
        pages = max(1, ceil_div(len(names), _PAGE))
        self.requests += pages
        time.sleep(pages * _LATENCY_S)
        return names


def _idling(store: Path, sizes: Sequence[int]) -> Table:
    """Measure rounds of `consolidate --follow` in which nothing is new, and the round of a new step."""
    rows, committed = [], 0
    for ranks in sizes:
        _commit(store, range(committed, ranks), [0], ["op0", "op1", "op2"])
        committed = ranks
        _consolidate(open_objects(resolve(str(store))))
        distant = _Distant(open_objects(resolve(str(store))))
        with Consolidator(distant, patience_s=3600) as consolidator:
            first = _timed(lambda: consolidator.once(listed_in_turn=True))
            distant.requests = 0
            idle = [_timed(lambda: consolidator.once(listed_in_turn=True)) for _ in range(_IDLE_ROUNDS)]
            requests = distant.requests // _IDLE_ROUNDS
            _commit(store, range(0, ranks, max(1, ranks // _WITH_NEWS)), [ranks], ["op0", "op1", "op2"])
            news = _timed(lambda: consolidator.once(listed_in_turn=True))
        rows.append((f"{ranks}", str(requests), shown(median(idle)), shown(news), shown(first)))
    return Table(
        f"Rounds of `consolidate --follow`, with {_LATENCY_S * 1000:g} ms for each request",
        (
            "ranks",
            "requests, nothing new",
            "s, nothing new",
            "s, a new step has begun",
            "s, first round",
        ),
        tuple(rows),
    )


def _question(
    setting: Setting, store: Path, ranks: int, steps: int, tensors: int
) -> Iterator[Measure | Table]:
    names = [f"Default_net-Model_layer{i}-Block_MatMul-op{i}" for i in range(tensors)]
    made = _timed(lambda: _commit(store, range(ranks), range(steps), names, steps // 2))
    objects = open_objects(resolve(str(store)))
    with Consolidator(objects) as consolidator:
        consolidated_s = _timed(consolidator.once)
    expected = 2 * (steps - steps // 2) * ranks
    ours, by_xarray = [], []
    for _ in range(setting.rounds):
        ours.append(_timed(lambda: _ask(store, expected)))
        by_xarray.append(_timed(lambda: _ask_xarray(store, expected)))
    by_tables = [_timed(lambda: _ask_tables(store, expected))] * setting.rounds
    size = f"{ranks} ranks x {steps} steps x {tensors} tensors"
    yield Measure(
        f"all tensors with NaN at any rank and step, of {size}",
        "the index of every step",
        "s",
        tuple(ours),
        tuple(by_tables),
    )
    counting = CountingStore(objects)
    assert len(_view(counting).find("nan_count > 0")) == expected
    yield Table(
        f"Consolidated view of {size}",
        ("what", "figure", "floor"),
        (
            ("all tensors with NaN, seconds", shown(median(ours)), "≤ 1"),
            ("the same with xarray.open_zarr, seconds", shown(median(by_xarray)), ""),
            ("requests of it", str(counting.requests), "≤ 50"),
            ("consolidating all of it, seconds", shown(consolidated_s), ""),
            ("per step and rank, milliseconds", shown(consolidated_s / ranks / steps * 1000), ""),
            ("making the commits, seconds", shown(made), ""),
        ),
    )


def _appending(short: Path, long: Path, ranks: int, steps: int, tensors: int) -> Measure:
    names = [f"Default_net-Model_layer{i}-Block_MatMul-op{i}" for i in range(tensors)]
    for store, length in ((short, 10), (long, steps)):
        _commit(store, range(ranks), range(length), names)
        _consolidate(open_objects(resolve(str(store))))

    def append(store: Path, length: int) -> float:
        objects = open_objects(resolve(str(store)))
        step = length + len(taken[store])
        _commit(store, range(ranks), [step], names)
        taken[store].append(_timed(lambda: _consolidate(objects)))
        return taken[store][-1]

    taken: dict[Path, list[float]] = {short: [], long: []}
    times = in_turns(_APPENDED, {"late": lambda: append(long, steps), "early": lambda: append(short, 10)})
    return Measure(
        f"append a step at step {steps} ({ranks} ranks, {tensors} tensors)",
        "at step 10",
        "s",
        times["late"],
        times["early"],
        Ratio.SHARE,
        floor=1.3,
        note="each by a new consolidator, which reads the state of the view",
    )


def _consolidate(objects: ObjectStore) -> None:
    with Consolidator(objects) as consolidator:
        assert consolidator.once()


def _commit(
    store: Path, ranks: Sequence[int], steps: Sequence[int], names: Sequence[str], born: int = 0
) -> None:
    """Commit steps without payloads; from step `born` on, two tensors of each rank contain NaN."""
    processes = 1 if len(ranks) * len(steps) < 100 else WORKERS
    commit_run(str(store), ranks, steps, names, born=born, processes=processes)


def _view(objects: ObjectStore) -> ConsolidatedCubes:
    cubes = open_cubes(objects)
    assert cubes is not None
    return cubes


def _ask(store: Path, expected: int) -> None:
    matches = open_store(store).consolidated().find("nan_count > 0")
    assert len(matches) == expected, len(matches)


def _ask_xarray(store: Path, expected: int) -> None:
    cubes = xr.open_zarr(f"{store}/consolidated")
    matches = np.nonzero((cubes.nan_count > 0).to_numpy())
    assert len(matches[0]) == expected, len(matches[0])


def _ask_tables(store: Path, expected: int) -> None:
    matches = open_store(store).tensors(where="nan_count > 0")
    assert len(matches) == expected, len(matches)


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
