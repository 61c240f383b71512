"""Many small tensors in a step, many steps, many ranks: the cost of each must not grow with their number.

Each is measured at two sizes, with two workers, in memory if there is a tmpfs: once, but the cost of a step
in several rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distributed import Client

from bench.load import build_small
from bench.measure import Measure, Ratio, in_turns, seconds, seconds_each
from bench.setting import WORKERS, Setting, ingest, workers
from ingest.api import open_store
from tests.servers.cluster import DaskCluster

_FILES_OF_STEP = 20
_FILES_OF_RANK = 200
#: The cost of one item may differ by this factor between the two sizes, and still counts as the same.
_LINEAR = 1.25


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield the costs of a file, of a step, and of a rank."""
    with workers() as client:
        with setting.target(setting.fast) as dump:
            build_small(dump, steps=3, files=_FILES_OF_STEP)
            _ingest(setting, client, dump)  # warm-up, not measured
        yield from _files(setting, client)
        yield from _steps(setting, client)
    yield from _ranks(setting)


def _files(setting: Setting, client: Client) -> Iterator[Measure]:
    few, many = (1_000, 4_000) if setting.quick else (25_000, 100_000)
    costs = []
    for count in (few, many):
        with setting.target(setting.fast) as dump:
            build_small(dump, files=count)
            costs.append(1e6 * _ingest(setting, client, dump) / count)
    yield _linear(f"a file, {many} tensors of 100 bytes in a step", f"{few} in a step", "µs", *costs[::-1])


def _steps(setting: Setting, client: Client) -> Iterator[Measure]:
    few, many = (50, 200) if setting.quick else (1_000, 10_000)
    with setting.target(setting.fast) as dump, setting.target(setting.fast) as store:
        build_small(dump, steps=few, files=_FILES_OF_STEP)
        rounds = min(setting.rounds, 3)
        times = in_turns(rounds, {"ours": lambda: 1e3 * _ingest(setting, client, dump) / few})
        yield Measure(
            f"a rank-step of {_FILES_OF_STEP} files, of {few}",
            "20 ms",
            "ms",
            times["ours"],
            (20.0,) * rounds,
            Ratio.SHARE,
            floor=1.0,
        )
        ingest(client, dump, store)
        opened_few = 1e3 * seconds_each(lambda: _open(store, few))
    with setting.target(setting.fast) as dump, setting.target(setting.fast) as store:
        build_small(dump, steps=many, files=_FILES_OF_STEP)
        cost = 1e3 * seconds(lambda: ingest(client, dump, store)) / many
        opened_many = 1e3 * seconds_each(lambda: _open(store, many))
    few_cost = sorted(times["ours"])[rounds // 2]
    yield _linear(f"a rank-step of {_FILES_OF_STEP} files, of {many}", f"of {few}", "ms", cost, few_cost)
    yield _linear(f"open one step of {many} and its index", f"of {few}", "ms", opened_many, opened_few)


def _ranks(setting: Setting) -> Iterator[Measure]:
    few, many = (8, 32) if setting.quick else (256, 1024)
    costs = []
    # A scheduler in its own process, as for a job on many hosts.
    with DaskCluster(workers=WORKERS) as cluster, workers(WORKERS, cluster.address) as client:
        with setting.target(setting.fast) as dump:
            build_small(dump, ranks=2, files=_FILES_OF_RANK)
            _ingest(setting, client, dump)
        for count in (few, many):
            with setting.target(setting.fast) as dump:
                build_small(dump, ranks=count, files=_FILES_OF_RANK)
                costs.append(1e3 * _ingest(setting, client, dump) / count)
    yield _linear(
        f"a rank of {_FILES_OF_RANK} files, of {many}, one scheduler", f"of {few}", "ms", *costs[::-1]
    )


def _ingest(setting: Setting, client: Client, dump: Path) -> float:
    with setting.target(setting.fast) as target:
        return seconds(lambda: ingest(client, dump, target))


def _open(store: Path, steps: int) -> int:
    step = open_store(store).step(0, steps // 2)
    return len(step.tables.numbers)


def _linear(name: str, against: str, unit: str, many: float, few: float) -> Measure:
    return Measure(name, against, unit, (many,), (few,), Ratio.SHARE, floor=_LINEAR)
