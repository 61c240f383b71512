"""Commits: whole, and never in the place of something newer, even by a task that was stopped for long."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, plan_all, run
from tests.wrapped_objects import WrappedObjects
from workers.errors import DumpIngestError, SourceChanged
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.opening import connect, resolve
from workers.store.record import WithoutTensors
from workers.tasks.convert import convert
from workers.tasks.model import StepPlan
from workers.tasks.publish import publish

KEY = StepKey(0, 0)


def planned(dump: MadeDump, store: Path) -> StepPlan:
    """Plan the step as the service does: with the generation that is committed at that time."""
    (plan,) = plan_all(dump.root, store)
    committed = commit.read(objects_of(store), KEY)
    return replace(plan, replaces=committed.fingerprint if committed else "")


def objects_of(store: Path) -> ObjectStore:
    return connect(resolve(str(store)))


@pytest.fixture
def plans(made: MadeDump, store: Path) -> tuple[StepPlan, StepPlan]:
    """A plan, and one of the same step when a file more had come; neither is committed."""
    made.add(np.zeros(3), tensor_name(slot=0))
    old = planned(made, store)
    made.add(np.ones(3), tensor_name(slot=1))
    return old, planned(made, store)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_late_task_does_not_bring_back_an_older_generation(
    made: MadeDump, store: Path, plans: tuple[StepPlan, StepPlan], *, is_first: bool
) -> None:
    """Whether or not anything was committed when it was planned."""
    old, new = plans
    if not is_first:
        run(old)
        made.add(np.full(3, 2.0), tensor_name(slot=2))
        old = planned(made, store)
        made.add(np.full(3, 3.0), tensor_name(slot=3))
        new = planned(made, store)
    receipts = [convert(job) for job in old.jobs]
    run(new)
    with pytest.raises(SourceChanged):
        publish(old, receipts)
    committed = commit.read(objects_of(store), KEY)
    assert committed is not None
    assert committed.fingerprint == new.fingerprint
    assert len(open_store(str(store)).tensors()) == (2 if is_first else 4)


def test_a_task_that_is_stopped_right_before_its_commit_looks_again(
    store: Path, plans: tuple[StepPlan, StepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but the last look and the commit was done before it was stopped."""
    old, new = plans

    class Stopped(WrappedObjects):
        def put_many(self, objects: Mapping[str, bytes]) -> None:
            super().put_many(objects)
            monkeypatch.undo()
            run(new)

    monkeypatch.setattr("workers.tasks.publish.open_objects", lambda _: Stopped(objects_of(store)))
    with pytest.raises(SourceChanged):
        run(old)
    committed = commit.read(objects_of(store), KEY)
    assert committed is not None
    assert committed.fingerprint == new.fingerprint


def test_a_late_task_does_not_bring_back_tensors_that_were_removed(made: MadeDump, store: Path) -> None:
    """Its commit would point to what is being deleted."""
    made.add(np.zeros(3), tensor_name(slot=0))
    plan = planned(made, store)
    run(plan)
    objects = objects_of(store)
    committed = commit.read(objects, KEY)
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))
    with pytest.raises(SourceChanged):
        run(plan)
    there = commit.read(objects, KEY)
    assert there is not None
    assert there.without_tensors is not None


def test_a_commit_of_less_than_was_planned_is_refused(made: MadeDump, store: Path) -> None:
    """It would lose data."""
    for slot in range(20):
        made.add(np.arange(100.0) + slot, tensor_name(slot=slot))
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    receipts = [convert(job) for job in plan.jobs]
    with pytest.raises(DumpIngestError, match="receipts do not cover all jobs"):
        publish(plan, receipts[1:])
    assert commit.read(objects_of(store), KEY) is None
