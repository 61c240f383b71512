"""Stores in which gc has something to delete, inventories of them, and what must hold afterwards."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import ingest
from ingest.store_gc.execute import GcReport
from ingest.store_gc.plan import Extent, GcPolicy, Generation, Inventory, StepInventory
from tests import checker
from tests.stores import MadeDump, ingest_directly, plan_all, tensor_name
from tests.wrapped_objects import WrappedObjects
from workers.model import StepKey
from workers.store.objects import NewObject, ObjectStore
from workers.store.opening import open_objects, resolve
from workers.tasks.convert import convert

# Make stores in which gc has something to delete, and check them afterwards.


DAY_S = 86400.0
#: Keeps the newest two steps of each rank, and those with an anomaly.
POLICY = GcPolicy(keep_last=2, keep_anomalous=True)


def age(store: Path, days: float = 2) -> None:
    """Set the modification times of everything in a store to some days ago."""
    then = time.time() - days * DAY_S
    for path in store.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def fill(dump: MadeDump, steps: Sequence[int], *, ranks: int = 2, nan_in: Sequence[int] = ()) -> None:
    """Dump two tensors and a text file for each step and rank, with NaN on rank 1 in the steps `nan_in`."""
    for step in steps:
        for rank in range(ranks):
            values = np.full(24, rank + step, "<f4")
            dump.add(values, tensor_name(time=1), step=step, rank=rank)
            if step in nan_in and rank == 1:
                values = np.full(24, np.nan, "<f4")
            dump.add(values, tensor_name(slot=1, time=2), step=step, rank=rank)
            dump.add(b"text", "notes.txt", step=step, rank=rank)


def make_store(root: Path) -> None:
    """Make `dump` and `run.zarr` below a directory.

    The store has six steps of two ranks, NaN in the third step, one previous generation, and the remains of
    two crashes.
    """
    dump = MadeDump(root / "dump")
    dump.root.mkdir()
    fill(dump, range(6), nan_in=[2])
    store = root / "run.zarr"
    ingest_directly(dump.root, store)
    dump.add(np.ones(3, "<f4"), tensor_name(slot=2, time=3), step=5, rank=0)
    ingest_directly(dump.root, store)  # the late file makes a second generation of one step
    crashed = MadeDump(root / "crashed")
    crashed.root.mkdir()
    fill(crashed, [7], ranks=1)
    (plan,) = plan_all(crashed.root, store)
    convert(plan.jobs[0])
    (store / "rank_0" / "step_0" / f".zarr.json.{'0' * 32}.tmp").write_bytes(b"half")
    age(store)


def objects_of(store: Path) -> ObjectStore:
    return open_objects(resolve(str(store)))


def gc(store: Path, policy: GcPolicy = POLICY) -> GcReport:
    return ingest.apply_gc(store, ingest.plan_gc(store, policy))


def steps_of(store: Path) -> list[tuple[int, int | None]]:
    return [(key.rank, key.step) for key in ingest.open_store(store).keys]


def assert_sound(store: Path) -> None:
    """Check that everything that readers see is complete and undamaged."""
    opened = ingest.open_store(store)
    assert list(opened.verify()) == []
    for step in opened.select():
        assert step.tables is not None


class Killed(BaseException):
    """The process ends here."""


class Fragile(WrappedObjects):
    """Ends the process before one of its writes or deletions."""

    def __init__(self, inner: ObjectStore, left: int) -> None:
        super().__init__(inner)
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def put(self, key: str, data: bytes | bytearray) -> None:
        self._count()
        super().put(key, data)

    def create(self, key: str) -> NewObject:
        self._count()
        return super().create(key)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Count two deletions, so that the process can end in the middle but not before each object."""
        for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
            self._count()
            super().delete_many(part)

    def prune(self, prefix: str) -> None:
        self._count()
        super().prune(prefix)


def without_times(store: Path) -> dict[str, bytes]:
    """Return the objects of a store without announcements and without the times of removals."""
    objects = {}
    for key, data in checker.objects(store).items():
        if "/removed/" in key:
            objects[key] = b""
        elif key.endswith("zarr.json") and b"without_tensors" in data:
            document = json.loads(data)
            if removal := document["attributes"]["dump_ingest"]["without_tensors"]:
                removal["at"] = ""
            objects[key] = json.dumps(document).encode()
        else:
            objects[key] = data
    return objects


# Inventories and policies of gc, generated by hypothesis or built by hand.


NOW = 1_800_000_000.0

_NAMES = st.sampled_from([f"{n:032x}" for n in range(4)])
_TIMES = st.floats(0, 10).map(lambda days: NOW - days * DAY_S)
_EXTENTS = st.builds(Extent, st.integers(1, 9), st.integers(1, 1000), _TIMES)
_GENERATIONS = st.builds(lambda own, rest: Generation(own, own + rest), _EXTENTS, _EXTENTS)
_KEYS = st.builds(StepKey, st.integers(0, 3), st.none() | st.integers(0, 12))


@st.composite
def _step_inventories(draw: st.DrawFn, key: StepKey) -> StepInventory:
    is_committed = draw(st.booleans())
    generations = draw(st.dictionaries(_NAMES, _GENERATIONS, max_size=3))
    if generations and is_committed:
        name, record = draw(st.sampled_from(sorted(generations))), Extent(1, 10, draw(_TIMES))
        facts = draw(_TIMES), draw(st.booleans()), draw(st.booleans())
        return StepInventory(key, generations, record, name, *facts)
    return StepInventory(key, generations, damage=draw(st.sampled_from(["", "no commit record"])))


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Return the inventory of any store: steps and run files of four ranks, committed, damaged or neither."""
    keys = draw(st.sets(_KEYS, min_size=1, max_size=20))
    steps = tuple(draw(_step_inventories(key)) for key in sorted(keys, key=lambda key: key.order))
    temporaries = {f"rank_0/.x.{n:032x}.tmp": draw(_EXTENTS) for n in range(draw(st.integers(0, 2)))}
    generations = [generation for step in steps for generation in step.generations.values()]
    total = sum((generation.whole for generation in generations), Extent(3, 1000))
    total += sum((step.record for step in steps), sum(temporaries.values(), Extent()))
    numbers = st.frozensets(st.integers(0, 12))
    return Inventory("/run.zarr", total, steps, temporaries, draw(numbers), draw(numbers))


POLICIES = st.builds(
    GcPolicy,
    st.none() | st.floats(0, 12 * DAY_S),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(0, 30_000),
    st.none() | st.integers(0, 3),
    st.booleans(),
    st.floats(0, 5 * DAY_S),
)


def one_rank(*numbers: int, anomalous: tuple[int, ...] = ()) -> Inventory:
    """Return the inventory of a store of one rank whose steps were committed ten days ago."""
    generation = Generation(Extent(5, 100, 0.0), Extent(10, 110, 0.0))
    steps = tuple(
        StepInventory(
            StepKey(0, number),
            {f"{number:032x}": generation},
            Extent(1, 1, 0.0),
            f"{number:032x}",
            NOW - 10 * DAY_S,
            number in anomalous,
            has_tensors=True,
        )
        for number in numbers
    )
    return Inventory("/run.zarr", Extent(11 * len(steps), 111 * len(steps)), steps)
