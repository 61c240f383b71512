"""Ingesting a dump in this process, without Dask, and how long each stage takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from ingest.cli import GC_OBJECTS
from ingest.layouts.base import Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from workers.arrays.digest import digest
from workers.arrays.marginals import MarginalScope
from workers.arrays.statistics import has_statistics, summarise
from workers.dump.source import OpenFile
from workers.rules.values import RuleSet
from workers.store.model import CommitSummary, Grid, Origin
from workers.store.opening import open_objects, resolve
from workers.store.packed.shards import ShardPacker
from workers.tasks.convert import PIECE_BYTES, convert
from workers.tasks.model import Entry, Segment, StepPlan
from workers.tasks.publish import publish

T = TypeVar("T")
_BUFFER = memoryview(bytearray(PIECE_BYTES))
#: The distinct payloads of each segment, each with the first entry that has it.
Distinct: TypeAlias = list[tuple[Segment, list[tuple[Entry, bytes]]]]
#: By key of a shard, the sizes of the pieces in which it is written.
Sizes: TypeAlias = dict[str, list[int]]
CONVERT_PARTS = ("read and digest", "statistics", "encode", "write")


@dataclass(slots=True)
class Stages:
    """Seconds by stage, summed over all steps."""

    seconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter

    def time(self, stage: str, function: Callable[[], T]) -> T:
        """Call `function`, add its duration to `stage`, and return its result."""
        started = self.clock()
        result = function()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + self.clock() - started
        return result


@contextmanager
def as_a_command() -> Iterator[None]:
    """Have the garbage collector look as seldom as in a command."""
    before = gc.get_threshold()
    gc.set_threshold(GC_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def ingest_here(
    dump: Path,
    store: Path,
    stages: Stages,
    *,
    rules: RuleSet | None = None,
    sketches: bool = False,
    marginals: MarginalScope = MarginalScope.ALL,
) -> list[CommitSummary]:
    """List, inspect, plan, convert and publish every step of a dump, one after another."""
    summaries = []
    for without in plans(dump, store, stages):
        plan = replace(without, rules=rules)
        if sketches:
            plan = plan.with_sketches(marginals)
        receipts = [stages.time("convert", lambda job=job: convert(job)) for job in plan.jobs]  # type: ignore[misc]
        summaries.append(stages.time("publish", lambda p=plan, r=receipts: publish(p, r)))  # type: ignore[misc]
    return summaries


def plans(dump: Path, store: Path, stages: Stages) -> list[StepPlan]:
    """List, inspect and plan every step of a dump."""
    detected = find_dump(dump)
    scan = stages.time("list", lambda: detected.scan({}))

    def plan(listing: Listing) -> StepPlan:
        origin = Origin(listing.layout, "localhost", str(detected.root), listing.rank_from)
        inspected = stages.time(
            "inspect", lambda: inspect(detected.root, listing, detected.describe(listing))
        )
        return stages.time("plan", lambda: plan_step(inspected, origin, resolve(str(store)), Grid()))

    return [plan(listing) for listing in scan.listings]


def split_convert(plan: StepPlan, stages: Stages) -> None:
    """Do the parts of `convert` one after another, each for a whole step.

    Together they take longer than `convert`, which does all parts while the data is in the cache.
    """
    distinct = distinct_payloads(plan)
    stages.time("read and digest", lambda: _read_all(plan))
    stages.time("statistics", lambda: _summarise_all(distinct))
    shards = stages.time("encode", lambda: _encode_all(distinct))
    stages.time("write", lambda: _write_all(plan, shards))


def distinct_payloads(plan: StepPlan) -> Distinct:
    """Read the payloads that a step stores: each content once."""
    return [(segment, _distinct(plan, segment, job.entries)) for job in plan.jobs for segment in job.segments]


def _read_all(plan: StepPlan) -> None:
    for entry in plan.entries:
        digest(_read(plan, entry))


def _summarise_all(distinct: Distinct) -> None:
    for _, payloads in distinct:
        for entry, data in payloads:
            dtype = entry.header.element.to_numpy() if entry.header else None
            if dtype is not None and has_statistics(dtype):
                summarise(np.frombuffer(data, dtype))


class _Measured:
    """A new object of which only the sizes of its pieces are kept: into a directory, nothing is gathered."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Note the size of a piece."""
        self._sizes.append(len(piece))

    def close(self) -> None:
        """Do nothing."""

    def drop(self) -> None:
        """Do nothing."""


def _encode_all(distinct: Distinct) -> Sizes:
    sizes: Sizes = {}
    for segment, payloads in distinct:

        def create(number: int, path: str = segment.array.path) -> _Measured:
            return _Measured(sizes.setdefault(f"{path}/c/{number}", []))

        with ShardPacker(segment.array, segment.first_shard, create) as packer:
            for _, data in payloads:
                packer.append(memoryview(data))
    return sizes


def _write_all(plan: StepPlan, shards: Sizes) -> None:
    """Write shards piece by piece, as conversion does: each piece is in the cache when it is written."""
    objects, content = open_objects(plan.store), memoryview(bytes(PIECE_BYTES))
    for key, sizes in shards.items():
        shard = objects.create(f"parts/{key}")
        for nbytes in sizes:
            shard.write(content[:nbytes])
        shard.close()


def _distinct(plan: StepPlan, segment: Segment, entries: dict[int, Entry]) -> list[tuple[Entry, bytes]]:
    by_digest: dict[bytes, tuple[Entry, bytes]] = {}
    for row in segment.rows:
        data = _read(plan, entries[row])
        by_digest.setdefault(digest(data), (entries[row], bytes(data)))
    return list(by_digest.values())


def _read(plan: StepPlan, entry: Entry) -> memoryview:
    buffer = _BUFFER if entry.nbytes <= len(_BUFFER) else memoryview(bytearray(entry.nbytes))
    with OpenFile(Path(plan.origin.root), entry.source, str(plan.key)) as file:
        pieces = list(
            file.pieces(buffer, entry.offset, entry.nbytes, entry.header.lead if entry.header else b"")
        )
    return pieces[0] if pieces else buffer[:0]
