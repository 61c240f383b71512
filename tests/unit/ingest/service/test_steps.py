"""What a service does with the steps of a dump."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.submitter import StepCommitted, StepFailed
from ingest.dump_retention.policy import RetentionPolicy
from ingest.layouts.detect import find_dump
from ingest.service.foreign_dump import ForeignDumpCheck
from ingest.service.offering import ServiceOptions, SharedTensors
from ingest.service.one_shot import explain_dump, ingest_once
from ingest.steps.committed import FilesNotTaken
from ingest.steps.decide import CompletenessPolicy, StepPolicy, StepRow, explain_table
from ingest.steps.watcher import QuietClock
from ingest.store_gc import apply_gc, plan_gc
from ingest.store_gc.plan import GcPolicy
from tests.pools import PooledRun, replicas, small_pools
from tests.services import FakeClient, FakeFuture, ingest, make_service, observed_service
from tests.stores import MadeDump, ingest_directly, npy_bytes, tensor_name
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreError, StoreUnavailable, UsageError
from workers.model import StepKey
from workers.store.model import Grid, RowKind
from workers.store.objects import ObjectStore
from workers.store.opening import connect, open_objects, resolve

# What is done with a step that the store has otherwise: replaced, kept, or refused.


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


# What a watcher would do with each step of a dump: one look, and nothing is written.


WHOLE = npy_bytes(np.arange(100, dtype="<f4"))


def explained(made: MadeDump, store: Path, **options: Any) -> dict[tuple[int, int | None], StepRow]:
    """Return the rows by rank and step; to them, all of the dump has been quiet for a minute."""
    chosen: dict[str, Any] = {
        "policy": StepPolicy(CompletenessPolicy(10, 1)),
        "quiet_clock": QuietClock(files=lambda _: _newest(made) + 60),
        "host": "test-host",
    } | options
    objects = open_objects(resolve(str(store)))
    rows = explain_dump(find_dump(made.root), objects, ServiceOptions(**chosen))
    return {(row.rank, row.step): row for row in rows}


def _newest(made: MadeDump) -> float:
    return max(path.lstat().st_ctime for path in made.root.rglob("*"))


@pytest.fixture
def three_steps(made: MadeDump, store: Path) -> MadeDump:
    """A dump of three steps, all in the store."""
    for step in range(3):
        made.add(WHOLE, tensor_name(time=step + 1), step=step)
    ingest_directly(made.root, store)
    return made


def tree(path: Path) -> dict[Path, int]:
    return {below: below.stat().st_mtime_ns for below in path.rglob("*")}


def test_every_step_says_where_it_is_and_neither_dump_nor_store_is_touched(
    three_steps: MadeDump, store: Path
) -> None:
    three_steps.add(WHOLE, step=3)
    three_steps.directory(4)
    short = three_steps.add(WHOLE[:200], step=5)
    before = tree(store), tree(three_steps.root)
    rows = explained(three_steps, store, quiet_clock=QuietClock(files=lambda _: _newest(three_steps) + 5))
    assert {step: row.phase for (_, step), row in rows.items()} == {
        0: "committed",
        1: "committed",
        2: "committed",
        3: "ready",
        4: "waiting",
        5: "waiting",
    }
    assert (rows[0, 4].waits_for, rows[0, 5].waits_for) == ("files", "time")
    assert (tree(store), tree(three_steps.root)) == before
    three_steps.directory(6)
    three_steps.add(WHOLE, step=6)
    waiting = explained(three_steps, store, quiet_clock=QuietClock(files=lambda _: _newest(three_steps) + 5))[
        0, 5
    ]
    assert (waiting.waits_for, waiting.reason) == (
        "content",
        f"{short.relative_to(three_steps.root)} is not whole yet",
    )


def test_a_store_that_is_not_there_is_not_made(made: MadeDump, store: Path) -> None:
    made.add(WHOLE, step=0)
    assert explained(made, store)[0, 0].reason == "complete; a watcher takes it now"
    assert not store.exists()


def test_what_gc_removed_and_what_is_kept_although_files_are_gone(three_steps: MadeDump, store: Path) -> None:
    more = three_steps.add(WHOLE, tensor_name(slot=1), step=2)
    ingest_directly(three_steps.root, store)
    assert not apply_gc(store, plan_gc(store, GcPolicy(keep_last=1))).left
    more.unlink()
    rows = explained(three_steps, store)
    assert [rows[0, step].phase for step in range(3)] == ["removed", "removed", "kept"]
    assert rows[0, 2].reason == "1 of its files are gone from the dump; its commit stays"


def test_why_dump_files_stay_is_told_without_deleting_any(three_steps: MadeDump, store: Path) -> None:
    three_steps.add(WHOLE[:200], step=1)
    ingest_directly(three_steps.root, store)
    rows = explained(three_steps, store, retention=RetentionPolicy())
    assert {step: row.source for (_, step), row in rows.items()} == {0: "queued", 1: "partial", 2: "newest"}
    assert len(list(three_steps.root.glob("rank_0/Net/0/*"))) == 3


# What becomes of a step that failed, or whose files changed: it is planned again, and what is left out.


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN], ids=errno.errorcode.get)
def test_failing_disk_costs_one_tensor_only(
    code: int, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector must not keep the rest of the step from being stored, nor be hidden."""
    made.add(np.arange(100.0), tensor_name(slot=0))
    bad = made.add(np.arange(100.0) + 1, tensor_name(slot=1))
    made.add(np.arange(100.0) + 2, tensor_name(slot=2))
    preadv, inode = os.preadv, bad.stat().st_ino

    def flaky(fd: int, buffers: Any, offset: int) -> int:
        if os.fstat(fd).st_ino == inode:
            raise OSError(code, os.strerror(code))
        return preadv(fd, buffers, offset)

    with monkeypatch.context() as patched:
        patched.setattr("os.preadv", flaky)
        report = ingest(made, store)
    (summary,) = report.commits
    assert (summary.status, summary.tensors, summary.quarantined) == ("partial", 2, 1)
    tensors = open_store(str(store)).tensors()
    assert [tensor.read()[0] for tensor in tensors] == [0, 2]
    step = open_store(str(store)).step(0, 0)
    (row,) = np.flatnonzero(step.tables.label("kind") == RowKind.QUARANTINED)
    assert "the disk does not return its bytes" in step.tables.label("problem")[row]
    # Once the disk gives it again, the step is stored whole: another generation, for it lies otherwise.
    (again,) = ingest(made, store).commits
    assert (again.status, again.tensors) == ("complete", 3)
    assert again.fingerprint != summary.fingerprint


def test_file_that_changes_meanwhile_is_planned_anew(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(filled.directory(step=1).iterdir())
    submit = FakeClient.submit
    touched: list[bool] = []

    def touching(self: FakeClient, function: Any, *arguments: Any, **options: Any) -> Any:
        if not touched and any(job.key == StepKey(0, 1) for job in FakeFuture("", function, arguments).jobs):
            touched.append(True)
            os.utime(path, ns=(10**18, 10**18))
        return submit(self, function, *arguments, **options)

    monkeypatch.setattr(FakeClient, "submit", touching)
    running, _ = observed_service(
        filled, store, policy=StepPolicy(CompletenessPolicy(quiet_s=0.1, settle_s=0.1))
    )
    report = ingest_once(running, threading.Event())
    assert touched
    assert len({summary.key for summary in report.commits}) == 5
    (tensor,) = open_store(str(store)).tensors(rank=0, step=1)
    assert tensor._step.tables.number("mtime_ns")[tensor.row] == 10**18


# Whether a dump belongs to a store: a wrong --store mixes two runs, and a dump may be moved all the same.


@pytest.fixture
def later(filled: MadeDump, store: Path, tmp_path: Path) -> MadeDump:
    """Another run, of which no step is in the store of `filled`, but both have a rank 0."""
    ingest(filled, store)
    other = MadeDump(tmp_path / "other")
    for step in (1, 7, 8):
        other.add(np.full(10, 9.0), step=step)
    return other


def test_nothing_of_another_dump_is_committed(later: MadeDump, filled: MadeDump, store: Path) -> None:
    """Not even the steps that the store does not have."""
    before = open_store(str(store)).keys
    with pytest.raises(UsageError) as raised:
        ingest(later, store)
    assert open_store(str(store)).keys == before
    assert str(filled.root) in raised.value.message
    assert str(later.root) in raised.value.message
    assert f"--continues {filled.root}" in raised.value.hint


def test_a_rank_that_a_watcher_sees_later_is_refused_alone(
    filled: MadeDump, store: Path, tmp_path: Path
) -> None:
    ingest(filled, store)
    other = MadeDump(tmp_path / "other")
    other.add(np.full(10, 9.0), rank=5, step=1)
    running, heard = observed_service(other, store, retry_forever=True)
    for _ in range(3):
        running.tick()
    other.add(np.full(10, 9.0), rank=0, step=7)
    other.add(np.full(10, 9.0), rank=5, step=2)
    deadline = time.monotonic() + 60
    while StepKey(5, 2) not in heard.keys(StepCommitted) or not heard.of(StepFailed):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        running.schedule.scan_soon()
        running.tick()
    failed = {event.plan.key: event.error for event in heard.of(StepFailed)}
    assert {key.rank for key in failed} == {0}
    assert all(isinstance(error, UsageError) for error in failed.values())
    keys = open_store(str(store)).keys
    assert StepKey(5, 2) in keys
    assert StepKey(0, 7) not in keys


def test_nothing_is_committed_while_it_is_not_known_where_a_rank_belongs(
    later: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may fail just when it is asked for that, and answer everything that is asked afterwards."""
    running, _ = observed_service(later, store, retry_forever=True)
    with monkeypatch.context() as patched:
        patched.setattr(ForeignDumpCheck, "check", raising(StoreUnavailable("busy")))
        before = open_store(str(store)).keys
        for _ in range(5):
            running.tick()
            running.schedule.scan_soon()
    with pytest.raises(UsageError):
        running.tick()
    assert open_store(str(store)).keys == before


def raising(error: Exception) -> Callable[..., NoReturn]:
    """Return a function that raises an error whatever it is called with."""

    def fail(*_: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize("how", ["moved", "copied", "linked", "other chunks", "grown"])
def test_a_dump_is_known_by_its_steps(how: str, filled: MadeDump, store: Path, tmp_path: Path) -> None:
    ingest(filled, store)
    elsewhere = MadeDump(tmp_path / "elsewhere")
    options = {"grid": Grid(chunk_nbytes=4096)} if how == "other chunks" else {}
    if how == "linked":
        elsewhere.root.symlink_to(filled.root)
    elif how == "copied":
        shutil.copytree(filled.root, elsewhere.root)
    else:
        filled.root.rename(elsewhere.root)
    elsewhere.add(np.full(10, 9.0), step=2)
    if how == "grown":
        elsewhere.add(np.full(10, 9.0), tensor_name(slot=1), rank=0, step=1)
    report = ingest(elsewhere, store, **options)
    assert not report.failures
    assert StepKey(0, 2) in {summary.key for summary in report.commits}
    assert (StepKey(0, 1) in {summary.key for summary in report.commits}) is (
        how in ("other chunks", "grown")
    )


def test_hosts_and_dumps_with_ranks_of_their_own_share_a_store(
    filled: MadeDump, store: Path, tmp_path: Path
) -> None:
    ingest(filled, store, host="node-1")
    other = MadeDump(tmp_path / "other")
    other.add(np.full(10, 9.0), rank=2, step=1)
    assert len(ingest(other, store, host="node-2").commits) == 1
    filled.add(np.full(10, 9.0), step=5)
    assert len(ingest(filled, store, host="renamed").commits) == 1


class Counted(WrappedObjects):
    """Counts the objects that are asked for."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked = 0
        self.is_down = False

    def get(self, key: str) -> bytes | None:
        if self.is_down:
            raise StoreUnavailable("down")
        self.asked += 1
        return super().get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        self.asked += len(keys)
        return super().get_many(keys)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledRun:
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    made.begin(2, replicas(0, shared=2, own=1))
    return made


def names(shared: SharedTensors, rank: int, step: int) -> set[str]:
    return {key.op_name for key in shared.of(StepKey(rank, step))}


WEIGHTS = {"net_weight0-op0", "net_weight1-op1"}


def test_a_rank_that_is_alone_reads_no_digests(tmp_path: Path) -> None:
    alone = PooledRun(tmp_path)
    alone.begin(1, replicas(0))
    shared = SharedTensors(Counted(alone.objects))
    assert shared.of(StepKey(0, 1)) == {}
    assert shared._known == {}


def test_a_damaged_view_and_a_store_that_is_away_share_nothing(run: PooledRun) -> None:
    objects = Counted(run.objects)
    shared = SharedTensors(objects)
    objects.is_down = True
    assert names(shared, 0, 1) == set()
    objects.is_down = False
    assert names(shared, 0, 1) == WEIGHTS
    (run.store / "consolidated/zarr.json").write_text("{")
    assert names(shared, 0, 2) == set()


# A commit that this process does not see.


def test_commit_that_is_not_seen_here_is_a_failure(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers with a directory of their own under the same name would swallow the dump."""
    monkeypatch.setattr("ingest.steps.committed.Committed.read", lambda *_: {})
    report = ingest(filled, store)
    assert isinstance(report.stopped_by, StoreError)
