"""Runs whose ranks share tensors: dumped, consolidated, and ingested with the pool, within this process."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.consolidating.consolidator import Consolidator
from ingest.layouts.detect import find_dump
from ingest.planning import pooling
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from ingest.reader.verifying import verify
from ingest.service.offering import SharedTensors
from tests import checker
from tests.stores import MadeDump, tensor_name
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import CommitSummary, Grid, Origin
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.packed import pool
from workers.tasks.convert import convert
from workers.tasks.model import StepPlan
from workers.tasks.publish import publish

RANKS = 3
TIME = 1_795_220_037_870_000
#: Elements of a tensor. A few of them are an array in the pool, which is then several chunks.
SIZE = 1500
GRID = Grid(chunk_nbytes=4096, shard_nbytes=64 * 1024, job_nbytes=64 * 1024)
#: By name of the operator: a number that stands for the content, the same on all ranks or not.
Contents = dict[str, int]


def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few KiB be worth an array in the pool."""
    monkeypatch.setattr(pooling, "_FEWEST_NBYTES", 8 * 1024)
    monkeypatch.setattr(pooling, "_MEAN_NBYTES", 24 * 1024)


def values_of(content: int) -> np.ndarray:
    """Return the tensor that a number stands for."""
    return np.random.default_rng(content).normal(size=SIZE).astype(np.float32)


class PooledRun:
    """A dump, and a store that it is ingested into step by step."""

    def __init__(self, directory: Path, store: str | None = None) -> None:
        """Make an empty dump in a directory; the store is beside it, unless it is given."""
        self.dump = MadeDump(directory / "dump")
        self.store = Path(store or directory / "run.zarr")
        self.address = resolve(str(self.store) if store is None else store)
        self.grid = GRID

    @property
    def objects(self) -> ObjectStore:
        """The store."""
        return open_objects(self.address)

    def add(self, rank: int, step: int, contents: Contents) -> None:
        """Dump a step of a rank."""
        for number, (name, content) in enumerate(contents.items()):
            file = tensor_name(f"Add.net_{name}-op{number}", time=TIME + 1000 * step + number)
            self.dump.add(values_of(content), file, step=step, rank=rank)

    def plan(self, rank: int, step: int, *, pooled: bool = True) -> StepPlan:
        """Plan a step of a rank as a watcher does."""
        key = StepKey(rank, step)
        tree = find_dump(self.dump.root)
        (listing,) = (listing for listing in tree.scan({}).listings if listing.key == key)
        return plan_step(
            inspect(tree.root, listing, tree.describe(listing)),
            Origin(listing.layout, "test-host", str(tree.root), listing.rank_from),
            self.address,
            self.grid,
            shared=SharedTensors(self.objects).of(key) if pooled else None,
        )

    def ingest(self, rank: int, step: int, *, pooled: bool = True) -> CommitSummary:
        """Ingest a step of a rank."""
        return run(self.plan(rank, step, pooled=pooled))

    def consolidate(self) -> None:
        """Bring the consolidated view up to date."""
        with Consolidator(self.objects) as consolidator:
            consolidator.once()

    def begin(self, ranks: int, contents: Callable[[int], Contents]) -> None:
        """Dump step 0 of all ranks, ingest and consolidate it: from then on, it is known what they share."""
        for rank in range(ranks):
            self.add(rank, 0, contents(rank))
            self.ingest(rank, 0)
        self.consolidate()

    def take(self, ranks: int, step: int, contents: Callable[[int], Contents]) -> list[CommitSummary]:
        """Dump a step of all ranks, and ingest it rank by rank."""
        for rank in range(ranks):
            self.add(rank, step, contents(rank))
        return [self.ingest(rank, step) for rank in range(ranks)]

    def commit(self, rank: int, step: int) -> Commit:
        """Return the commit of a step of a rank."""
        committed = commit.read(self.objects, StepKey(rank, step))
        assert committed is not None
        return committed

    def pool(self, step: int) -> dict[str, int]:
        """Return the objects in the pool of a step, by key in it, with their sizes."""
        return self.objects.sizes(f"{pool.POOL}/step_{step}")

    def is_whole(self) -> bool:
        """Return whether verify, and the checker that knows only the documentation, find nothing wrong."""
        checker.check(self.store, self.dump.root)
        return not list(verify(open_store(str(self.store))))


def run(plan: StepPlan) -> CommitSummary:
    """Convert and publish one step."""
    return publish(plan, [convert(job) for job in plan.jobs])


def replicas(step: int, *, shared: int = 8, own: int = 4) -> Callable[[int], Contents]:
    """Return the contents of a step by rank: weights that all ranks share, and activations of their own."""
    return lambda rank: {
        **{f"weight{number}": 1000 * step + number for number in range(shared)},
        **{f"activation{number}": 1000 * step + 100 * (rank + 1) + number for number in range(own)},
    }
