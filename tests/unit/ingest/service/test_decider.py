"""What is done with a step that the store has otherwise: replaced, kept, or refused."""

import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.submitter import StepCommitted, StepFailed
from ingest.service.one_shot import ingest_once
from ingest.steps.committed import FilesNotTaken
from ingest.steps.decide import StepPolicy, explain_table
from ingest.store_gc import apply_gc, plan_gc
from ingest.store_gc.plan import GcPolicy
from tests.npy_files import MadeDump, tensor_name
from tests.services import ingest, make_service, observed_service
from tests.wrapped_objects import WrappedObjects
from workers.model import StepKey
from workers.store.opening import connect, resolve

pytestmark = pytest.mark.timeout(30)


def test_files_that_are_deleted_are_still_in_the_store(filled: MadeDump, store: Path) -> None:
    """People make room on a full disk; what was committed must not shrink with the dump."""
    gone = filled.add(np.full(10, 7.0), tensor_name(slot=1), step=1)
    ingest(filled, store)
    gone.unlink()
    report = ingest(filled, store)
    assert report.commits == []
    assert [(kept.key, kept.gone) for kept in report.kept] == [(StepKey(0, 1), 1)]
    assert len(open_store(str(store)).tensors(rank=0, step=1)) == 2


def test_a_late_file_beside_deleted_ones_does_not_replace_them(filled: MadeDump, store: Path) -> None:
    """Asynchronous writers are late, and people make room. Nothing is lost, or left out in silence."""
    files = [filled.add(np.full(10, float(slot)), tensor_name(slot=slot), step=1) for slot in range(1, 5)]
    ingest(filled, store)
    for path in files:
        path.unlink()
    late = filled.add(np.zeros(3), tensor_name(slot=9), step=1)
    report = ingest(filled, store)
    assert report.commits == []
    error = report.failures[StepKey(0, 1)]
    assert isinstance(error, FilesNotTaken)
    assert error.files == (str(late.relative_to(filled.root)),)
    assert StepKey(0, 1) not in report.unchanged
    assert len(open_store(str(store)).tensors(rank=0, step=1)) == 5
    report = ingest(filled, store, policy=StepPolicy(replace=True))
    assert [summary.tensors for summary in report.commits] == [2]


def test_a_watcher_tells_of_files_that_it_does_not_take_and_looks_again_when_they_change(
    filled: MadeDump, store: Path
) -> None:
    first = [filled.add(np.full(10, 7.0), tensor_name(slot=slot), step=1) for slot in range(1, 10)]
    ingest(filled, store)
    shutil.rmtree(first[0].parent)
    filled.add(np.full(10, 8.0), tensor_name(slot=20), step=1)
    running, heard = observed_service(filled, store, retry_forever=True)
    for _ in range(5):
        running.schedule.scan_soon()
        running.tick()
    assert [(event.plan.key, type(event.error)) for event in heard.of(StepFailed)] == [
        (StepKey(0, 1), FilesNotTaken)
    ]
    assert running.dump_state is not None
    assert running.dump_state.pending.keys() == {StepKey(0, 1)}
    (row,) = (
        row for row in explain_table(running.table, running.policy, running.clock()) if row.phase == "refused"
    )
    assert (row.rank, row.step) == (0, 1)
    assert "slot" not in row.reason
    assert ".output.20." in row.reason
    for slot in range(9):  # the rest of the other dump
        filled.add(np.full(10, 8.0), tensor_name(slot=slot), step=1)
    deadline = time.monotonic() + 20
    while not heard.of(StepCommitted):
        assert time.monotonic() < deadline
        running.schedule.scan_soon()
        running.table.ensure(StepKey(0, 1)).quiet_since -= 60
        running.tick()
    assert len(open_store(str(store)).tensors(rank=0, step=1)) == 10


def test_what_was_removed_from_the_store_is_not_taken_again(filled: MadeDump, store: Path) -> None:
    """The dump still has it, whole or in part. Only what is dumped again, or asked for again, is taken."""
    late = filled.add(np.zeros(3), rank=0, step=0)
    ingest(filled, store)
    policy = GcPolicy(keep_last=1)
    assert not apply_gc(store, plan_gc(store, policy)).left
    left = [StepKey(0, None), StepKey(0, 1), StepKey(1, 1)]
    report = ingest(filled, store)
    assert (report.commits, report.unchanged) == ([], left)
    assert report.removed == [StepKey(0, 0), StepKey(1, 0)]
    late.unlink()
    assert ingest(filled, store).commits == []
    assert open_store(str(store)).keys == left
    filled.add(np.ones(3), rank=0, step=0)
    assert [summary.key for summary in ingest(filled, store).commits] == [StepKey(0, 0)]
    again, _ = observed_service(filled, store, take_removed=True)
    assert [summary.key for summary in ingest_once(again, threading.Event()).commits] == [StepKey(1, 0)]
    assert len(open_store(str(store)).keys) == 5


class Racing(WrappedObjects):
    """Somebody removes steps right before the index of one is read."""

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        if any("/index/" in key for key in keys):
            assert not apply_gc(self.address.url, plan_gc(self.address.url, GcPolicy(keep_last=1))).left
        return super().get_many(keys)


def test_a_step_that_is_removed_while_it_is_compared_ends_nothing(filled: MadeDump, store: Path) -> None:
    gone = filled.add(np.full(10, 7.0), tensor_name(slot=1), rank=0, step=0)
    ingest(filled, store)
    gone.unlink()
    running = make_service(filled.root, Racing(connect(resolve(str(store)))))
    report = ingest_once(running, threading.Event())
    assert (report.commits, report.failures) == ([], {})
    assert report.removed == [StepKey(0, 0)]


def test_a_step_with_a_damaged_index_is_not_replaced_and_keeps_no_other_waiting(
    filled: MadeDump, store: Path
) -> None:
    gone = filled.add(np.full(10, 7.0), tensor_name(slot=1), rank=0, step=0)
    ingest(filled, store)
    before = open_store(str(store)).step(0, 0).fingerprint
    for path in (store / "rank_0" / "step_0").rglob("index/*/c/**/*"):
        if path.is_file():
            path.write_bytes(b"")
    gone.unlink()
    filled.add(np.ones(3), rank=0, step=2)
    running, _ = observed_service(filled, store, retry_forever=True)
    outcomes = [outcome for _ in range(5) for outcome in running.tick()]
    assert [outcome.plan.key for outcome in outcomes if isinstance(outcome, StepFailed)] == [StepKey(0, 0)]
    assert [outcome.plan.key for outcome in outcomes if isinstance(outcome, StepCommitted)] == [StepKey(0, 2)]
    assert open_store(str(store)).step(0, 0).fingerprint == before
