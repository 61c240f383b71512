"""A small store that has everything a store can have: what a campaign of damage works on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

import ingest
from ingest.consolidating import lease
from ingest.consolidating.consolidator import Consolidator
from ingest.findings.stored import SeriesEvaluator
from ingest.layouts.detect import find_dump
from ingest.planning import pooling
from ingest.planning.inspection import inspect
from ingest.planning.plan import plan_step
from ingest.service.offering import SharedTensors
from ingest.store_gc.plan import GcPolicy
from tests.gc_stores import age
from tests.pt_files import archive, members_of, rebuilt
from tests.stores import MadeDump, MadeRun
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store import commit
from workers.store.consolidated.cubes import CubeGrid
from workers.store.model import Grid, Origin
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors
from workers.tasks.convert import convert
from workers.tasks.publish import publish

STEPS = (0, 1, 2, 3)
#: The ranks that dump npy files, and the one that dumps views in `.pt` files.
RANKS, TORCH_RANK = (0, 1), 2
#: A step that gc removed, a step without tensors, the step in which a NaN is born, a step dumped again.
REMOVED_STEP, EMPTIED_STEP, NAN_STEP, AGAIN_STEP = 0, 1, 2, 3
#: So small that the view has full blocks of steps, and several objects for each step.
CUBE_GRID = CubeGrid(ranks=2, tensors=8, inner_tensors=4, steps=2)


@dataclass(frozen=True, slots=True)
class WholeStore:
    """A store, its dumps, and the store as it was before."""

    root: Path

    @property
    def store(self) -> Path:
        """The store."""
        return self.root / "run.zarr"

    @property
    def earlier(self) -> tuple[Path, ...]:
        """Copies of the store as it was, the oldest first."""
        return tuple(sorted(self.root.glob("earlier-*.zarr")))

    @property
    def dumps(self) -> tuple[Path, ...]:
        """What it was ingested from."""
        return self.root / "dump", self.root / "torch"

    @property
    def objects(self) -> ObjectStore:
        """The store, to read and write."""
        return open_objects(resolve(str(self.store)))


@contextmanager
def promptly() -> Iterator[None]:
    """Let small tensors be worth the pool, and take leases without waiting."""
    with (
        patch.object(pooling, "_FEWEST_NBYTES", 2 * 1024),
        patch.object(pooling, "_MEAN_NBYTES", 16 * 1024),
        patch.object(CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: CUBE_GRID)),
        patch.object(lease, "_READ_BACK_S", 0.0),
        patch.object(lease, "_LOOK_S", 0.01),
        patch.object(lease, "LEASE_S", 0.05),
    ):
        yield


def consolidate(objects: ObjectStore, *, check: bool = False) -> object:
    """Bring the consolidated view up to date, rules over several steps included."""
    evaluator = SeriesEvaluator(objects, load_rules().enabled)
    with Consolidator(objects, evaluator=evaluator) as consolidator:
        return consolidator.once(check=check)


def make(root: Path) -> WholeStore:
    """Make dumps and the store below an empty directory."""
    whole = WholeStore(root)
    with promptly():
        for step in STEPS:
            _dump_step(whole, step)
            _ingest(whole, step)
            consolidate(whole.objects)
            if step == NAN_STEP:
                _keep_a_copy(whole)
        _ingest(whole, None)
        _write_again(whole)
        _keep_a_copy(whole)
        _collect(whole, GcPolicy(steps=(REMOVED_STEP,), ranks=(0,), grace_s=0))
        consolidate(whole.objects)
        _keep_a_copy(whole)
        # The last changes are announced, and not in the view yet.
        _drop_tensors(whole)
        _collect(whole, GcPolicy(steps=(REMOVED_STEP,), ranks=(1,), grace_s=0))
    (whole.store / lease.VIEW_LEASE).write_bytes(b'{"owner":"elsewhere:1:ended","renewed_at":0}')
    age(whole.store)
    return whole


def _dump_step(whole: WholeStore, step: int) -> None:
    """Dump one step of all ranks: shared and own tensors, a NaN, a large tensor, files, views."""
    dump = MadeDump(whole.dumps[0])
    weights = np.random.default_rng(0).normal(size=(64, 80)).astype(np.float32)
    for rank in RANKS:
        run = MadeRun(dump)
        own = np.random.default_rng(10 * step + rank + 1).normal(size=(64, 80)).astype(np.float32)
        bad = np.where(own < -2, np.nan, own) if (rank, step) == (1, NAN_STEP) else np.abs(own)
        run.parameter("weight", weights + step, rank=rank, step=step)
        run.op("MatMul.net_MatMul-op0", [own[:4], weights + step], [own], rank=rank, step=step)
        run.op("Log.net_Log-op1", [own], [bad], rank=rank, step=step)
        run.op("Sum.net_Sum-op2", [bad], [bad.sum(0)], rank=rank, step=step)
        if step >= NAN_STEP:
            large = np.tile(np.arange(1000, dtype=np.float32) + rank + step, (300, 1))
            run.op("Range.net_Range-op3", (), [large], rank=rank, step=step)
        dump.add(b"text %d %d" % (rank, step), "notes.txt", step=step, rank=rank)
        order = dump.root / f"rank_{rank}/execution_order"
        order.mkdir(exist_ok=True)
        (order / "ms_execution_order_graph_0.csv").write_text(
            f"Parameter.weight\nMatMul.net_MatMul-op{rank}\n"
        )
    torch = whole.dumps[1] / "dump_20260101_000000_000000"
    torch.mkdir(parents=True, exist_ok=True)
    storage = np.arange(100, dtype=np.float32) + step
    view = rebuilt("torch.FloatStorage", (5, 10), (10, 1), offset=20, elements=100)
    name = f"step={step}___rank={TORCH_RANK}___dump_index=1___name=layers.0.act.pt"
    (torch / name).write_bytes(archive(members_of(view, storage.tobytes())))


def _ingest(whole: WholeStore, step: int | None) -> None:
    """Ingest one step of all ranks, or all run files, with findings and sketches, and with the pool."""
    shared = SharedTensors(whole.objects)
    address = resolve(str(whole.store))
    for root in whole.dumps:
        tree = find_dump(root)
        for listing in tree.scan({}).listings:
            if listing.key.step != step or not listing.files:
                continue
            plan = plan_step(
                inspect(tree.root, listing, tree.describe(listing)),
                Origin(listing.layout, "test-host", str(tree.root), listing.rank_from),
                address,
                Grid(),
                load_rules().enabled,
                sketches=True,
                shared=shared.of(listing.key),
            )
            publish(plan, [convert(job) for job in plan.jobs])


def _write_again(whole: WholeStore) -> None:
    """Give one step of a rank another generation, because a file arrives late."""
    MadeDump(whole.dumps[0]).add(b"late", "late.txt", step=AGAIN_STEP, rank=0)
    _ingest(whole, AGAIN_STEP)


def _drop_tensors(whole: WholeStore) -> None:
    """Keep one step of a rank without its tensors, as gc does."""
    key, objects = StepKey(0, EMPTIED_STEP), whole.objects
    committed = commit.read(objects, key)
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))
    shutil.rmtree(whole.store / committed.prefix / "tensors", ignore_errors=True)


def _collect(whole: WholeStore, policy: GcPolicy) -> None:
    age(whole.store)
    assert ingest.apply_gc(whole.store, ingest.plan_gc(whole.store, policy)).done


def _keep_a_copy(whole: WholeStore) -> None:
    shutil.copytree(whole.store, whole.root / f"earlier-{len(whole.earlier)}.zarr")
