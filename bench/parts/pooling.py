"""Data-parallel ranks of the large profile, stored with the pool of a step and without.

A file is the same on all ranks if it was the same on both ranks of the dump that the profile describes. Ranks
are dumped, ingested and removed one after the other, in one process: the disk need not hold all of them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.costs import copy_cost
from bench.load import Load, build_step, read_profile, read_replicated
from bench.measure import Measure, Ratio, in_turns
from bench.parts.reading import read_back
from bench.parts.whole import ingest_cost
from bench.setting import PROFILE, Setting
from bench.stages import as_a_command
from ingest.api import open_store
from ingest.consolidating.consolidator import Consolidator
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from ingest.reader.verifying import verify
from ingest.service.offering import SharedTensors
from workers.model import StepKey
from workers.store.backends.wrappers import ObservedObjects
from workers.store.model import Grid, Origin, StoreAddress
from workers.store.opening import open_objects, resolve
from workers.tasks.convert import convert
from workers.tasks.publish import publish

REPLICATED = PROFILE.with_name("tinybert-large.replicas.csv.xz")
#: The most that each number of ranks may store, as a share of the raw bytes.
_SHARES = {2: 0.24, 8: 0.18, 64: 0.165}
#: Requests of a rank and step that the pool may add.
_MORE_REQUESTS = 15


def measure(setting: Setting) -> Iterator[Measure]:
    """Yield stored bytes, requests, and the times to ingest, read and verify."""
    counts = (2,) if setting.quick else (2, 8)
    for ranks in counts:
        yield from _measure_ranks(setting, ranks)
    if not setting.quick:
        yield from _measure_commands(setting)


def _measure_commands(setting: Setting) -> Iterator[Measure]:
    """Yield what `dump-ingest ingest` of three steps of a replica takes, as a process, against `cp -r`."""
    rows, shared = read_profile(PROFILE), _shared_contents()
    for place, parent in _places(setting).items():
        with setting.target() as dump, setting.target(parent) as before, setting.target(parent) as store:
            for rank in range(2):
                build_step(rows, dump, rank, 0, shared)
            ingest_cost(dump, before)
            with Consolidator(open_objects(resolve(str(before)))) as consolidator:
                consolidator.once()  # what ranks share follows from the view
            shutil.rmtree(dump)
            for rank in range(2):
                for step in range(1, 4):
                    build_step(rows, dump, rank, step, shared)
                if rank == 0:
                    ingest_cost(dump, before)
                    shutil.rmtree(dump)
            costs = in_turns(
                setting.rounds,
                {
                    "copy": lambda store=store, dump=dump: _copied(dump, store),  # type: ignore[misc]
                    "ingest": lambda store=store, dump=dump, before=before: _ingested(dump, before, store),  # type: ignore[misc]
                },
            )
        yield Measure(
            "processor time of `dump-ingest ingest`, a replica, 2.2 GB in 3 steps",
            f"cp -r of its dump to {place}",
            "s",
            costs["ingest"],
            costs["copy"],
            Ratio.SHARE,
            floor=1.0,
        )


def _copied(dump: Path, target: Path) -> float:
    processor_s = copy_cost(dump, target).processor
    shutil.rmtree(target)
    return processor_s


def _ingested(dump: Path, before: Path, store: Path) -> float:
    """Ingest into a copy of a store; return the processor time in seconds."""
    shutil.copytree(before, store)
    processor_s = ingest_cost(dump, store).processor
    shutil.rmtree(store)
    return processor_s


def _measure_ranks(setting: Setting, ranks: int) -> Iterator[Measure]:
    with setting.target() as plain_path, setting.target() as pooled_path, setting.target() as dump:
        places = _places(setting)
        plain, pooled = _Run(plain_path, dump, {}), _Run(pooled_path, dump, places)
        compared = min(ranks, 2)
        for rank in range(ranks):
            pooled.add(rank, 0)
        pooled.consolidate()
        for rank in range(compared):
            plain.add(rank, 1, is_pooled=False)
        for rank in range(ranks):
            pooled.add(rank, 1)
        stored = sum(
            sum(pooled.objects.sizes(prefix).values())
            for prefix in ("pool/step_1", *(f"rank_{rank}/step_1" for rank in range(ranks)))
        )
        raw = sum(load.nbytes for load in pooled.loads[ranks:])
        yield Measure(
            f"stored bytes of {ranks} data-parallel ranks, from the second step on",
            "raw bytes",
            "MB",
            (stored / 1e6,),
            (raw / 1e6,),
            Ratio.SHARE,
            floor=_SHARES[ranks],
        )
        yield _requests(pooled, plain, ranks, "the first rank", 0)
        yield _requests(pooled, plain, ranks, "another rank", ranks - 1)
        for place in places:
            yield Measure(
                f"processor time of a step from listing to commit, each further rank of {ranks}",
                f"cp -r of its dump to {place}",
                "s",
                tuple(pooled.whole_s[ranks + 1 :]),
                tuple(pooled.copying_s[place][ranks + 1 :]),
                Ratio.SHARE,
                floor=1.0,
            )
        if ranks == 2:
            for which, rank in (("first", 0), ("second", 1)):
                yield Measure(
                    f"processor time to convert and publish a step, {which} rank",
                    "without pool",
                    "s",
                    (pooled.processor_s[ranks + rank],),
                    (plain.processor_s[rank],),
                )
            _remove_step(pooled, 0)
            yield from _reading(setting, pooled, plain)


def _places(setting: Setting) -> dict[str, Path]:
    return {"disk": setting.disk} | ({"tmpfs": setting.memory} if setting.memory else {})


def _shared_contents() -> frozenset[int]:
    """Return the contents of the profile that all replicas have."""
    names = read_replicated(REPLICATED)
    return frozenset(row.content for row in read_profile(PROFILE) if row.name in names)


def _requests(pooled: _Run, plain: _Run, ranks: int, which: str, rank: int) -> Measure:
    ours, other = pooled.requests[ranks + rank].total(), plain.requests[min(rank, 1)].total()
    return Measure(
        f"requests of a rank and step, {which} of {ranks}",
        f"{_MORE_REQUESTS} more than without pool",
        "requests",
        (ours,),
        (other + _MORE_REQUESTS,),
        Ratio.SHARE,
        floor=1.0,
    )


def _reading(setting: Setting, pooled: _Run, plain: _Run) -> Iterator[Measure]:
    """Yield the times to read and to verify the same two steps."""
    for what, function in (("read every tensor back", read_back), ("verify", _verify)):
        function(plain.store)  # warm-up, not measured
        times = in_turns(
            setting.rounds,
            {
                "pool": lambda function=function: _processor_s(lambda: function(pooled.store)),  # type: ignore[misc]
                "plain": lambda function=function: _processor_s(lambda: function(plain.store)),  # type: ignore[misc]
            },
        )
        name = f"processor time to {what}, 2 ranks"
        yield Measure(name, "without pool", "s", times["pool"], times["plain"], floor=0.9)


def _processor_s(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def _verify(store: Path) -> None:
    assert not list(verify(open_store(str(store))))


def _remove_step(run: _Run, step: int) -> None:
    for rank in range(2):
        shutil.rmtree(run.store / f"rank_{rank}" / f"step_{step}")
    shutil.rmtree(run.store / "consolidated")


class _Run:
    """A store into which ranks are ingested one after the other."""

    def __init__(self, store: Path, dump: Path, places: Mapping[str, Path]) -> None:
        """Begin with no rank; each dump is also copied with `cp -r` to these places, by name."""
        self.store = store
        self.address: StoreAddress = resolve(str(store))
        self.objects = open_objects(self.address)
        self.loads: list[Load] = []
        self.requests: list[Counter[str]] = []
        self.processor_s: list[float] = []
        """Processor time to convert and publish each dump, in seconds."""
        self.whole_s: list[float] = []
        """The same with listing, inspecting and planning it: what a rank adds to a command."""
        self.copying_s: dict[str, list[float]] = {place: [] for place in places}
        """By place: processor time of `cp -r` of each dump, in seconds."""
        self._places = places
        self._shared = SharedTensors(self.objects)
        self._dump = dump
        self._rows = read_profile(PROFILE)
        self._replicated = _shared_contents()

    def consolidate(self) -> None:
        """Make the view, and open it as a watcher does once: later steps take a request or two."""
        with Consolidator(self.objects) as consolidator:
            consolidator.once()
        self._shared.of(StepKey(0, 1000))

    def add(self, rank: int, step: int, *, is_pooled: bool = True) -> None:
        """Dump a step of a rank, ingest it, and remove the dump."""
        self.loads.append(build_step(self._rows, self._dump, rank, step, self._replicated))
        for place, parent in self._places.items():
            copied = parent / f"{self.store.name}-copied"
            self.copying_s[place].append(copy_cost(self._dump, copied).processor)
            shutil.rmtree(copied)
        os.sync()
        with counted() as requests, as_a_command():
            self.whole_s.append(_processor_s(lambda: self._ingest(rank, step, is_pooled=is_pooled)))
        self.requests.append(requests)
        shutil.rmtree(self._dump)

    def _ingest(self, rank: int, step: int, *, is_pooled: bool) -> None:
        tree = find_dump(self._dump)
        listing = next(found for found in tree.scan({}).listings if found.key == StepKey(rank, step))
        inspected = inspect(tree.root, listing, tree.describe(listing))
        plan = plan_step(
            inspected,
            Origin(listing.layout, "bench", str(tree.root), listing.rank_from),
            self.address,
            Grid(),
            shared=self._shared.of(listing.key) if is_pooled else None,
        )
        self.processor_s.append(_processor_s(lambda: publish(plan, [convert(job) for job in plan.jobs])))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Yield a counter of the requests of this process, by kind; one for each object that is asked for."""
    counter: Counter[str] = Counter()
    methods = {name: getattr(ObservedObjects, name) for name in ("put", "create", "get_many", *_SINGLE)}

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(store: ObservedObjects, requested: Any = "", *rest: Any) -> Any:
            counter[name] += 1 if isinstance(requested, str) else len(requested)
            return method(store, requested, *rest)

        return counted

    for name, method in methods.items():
        setattr(ObservedObjects, name, counting(name, method))
    try:
        yield counter
    finally:
        for name, method in methods.items():
            setattr(ObservedObjects, name, method)


_SINGLE = ("get", "get_range", "children", "sizes", "listed", "delete")
