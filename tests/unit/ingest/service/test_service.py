"""The service as a whole, with a client that runs every task at once: no thread, no cluster, no waiting."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.outcomes import StepCommitted, StepFailed
from ingest.service.one_shot import ingest_once
from ingest.service.report import Report
from ingest.service.service import Service
from ingest.steps.completeness import CompletenessPolicy
from ingest.steps.events import CommitReverted, DependencyDown, StoreRecovered
from ingest.steps.policy import StepPolicy
from ingest.store_gc import apply_gc, plan_gc
from ingest.store_gc.policy import GcPolicy
from ingest.watching.watcher import DumpState, Watcher
from tests.fake_client import FakeClient, FakeFuture
from tests.npy_files import MadeDump, tensor_name
from tests.services import Heard, make_service
from tests.wrapped_objects import WrappedObjects
from workers.errors import (
    ClusterError,
    DumpIngestError,
    PoisonedFile,
    SourceChanged,
    StoreDenied,
    StoreError,
    StoreFormatError,
    StoreUnavailable,
)
from workers.model import StepKey
from workers.store.backends.observed import ObservedObjects
from workers.store.model import RowKind
from workers.store.opening import connect, resolve
from workers.tasks.convert import convert
from workers.tasks.model import Entry, Receipt, ShardJob

pytestmark = pytest.mark.timeout(30)


def service(made: MadeDump, store: Path, **options: Any) -> tuple[Service, Heard]:
    """Return a service for which everything in the dump has been quiet for a minute."""
    heard = Heard()
    return make_service(made.root, store, observers=[heard.append], **options), heard


def ingest(made: MadeDump, store: Path) -> Report:
    return ingest_once(service(made, store)[0], threading.Event())


@pytest.fixture
def filled(made: MadeDump) -> MadeDump:
    """Two ranks, two steps and a run file."""
    for rank in range(2):
        for step in range(2):
            made.add(np.full(10, rank + step, "<f4"), rank=rank, step=step)
    (made.root / "notes.txt").write_text("x")
    return made


def test_everything_is_taken_once(filled: MadeDump, store: Path) -> None:
    """A restart rescans the dump and compares it with the store: there is no other state."""
    keys = [StepKey(0, None), *(StepKey(rank, step) for step in range(2) for rank in range(2))]
    report = ingest(filled, store)
    assert sorted((summary.key for summary in report.commits), key=lambda key: key.order) == keys
    assert not report.failures
    assert open_store(str(store)).keys == keys
    again = ingest(filled, store)
    assert again.commits == []
    assert again.unchanged == keys


def test_one_shot_run_ends_although_directories_are_empty(filled: MadeDump, store: Path) -> None:
    """A job that was killed just after it had made the directory of its next step."""
    filled.directory(step=2)
    (filled.root / "rank_1" / "latest").symlink_to("Net")
    report = ingest(filled, store)
    assert len(report.commits) == 5
    assert [problem.path for problem in report.problems] == ["rank_1/latest"]
    assert StepKey(0, 2) not in report.unchanged


@pytest.mark.parametrize("what", ["file", "step", "rank"])
def test_one_shot_run_ends_although_something_is_denied(
    what: str, filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore leaves directories as 0700 and files as 0400: this is what another user sees."""
    path = filled.add(np.zeros(1), rank=1, step=1)
    denied = {"file": path, "step": path.parent, "rank": filled.root / "rank_1"}[what]
    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, _refusing(denied, getattr(os, name)))
    report = ingest(filled, store)
    assert report.failures.keys() == {StepKey(1, None if what == "rank" else 1)}
    (error,) = report.failures.values()
    assert "setfacl" in error.hint
    assert StepKey(0, 1) in {summary.key for summary in report.commits}


def _refusing(path: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(name: object, *args: object) -> object:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, *args)

    return refusing


def test_foreign_hierarchy_is_left_alone(filled: MadeDump, store: Path) -> None:
    store.mkdir()
    (store / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(StoreFormatError):
        ingest(filled, store)
    assert [path.name for path in store.iterdir()] == ["zarr.json"]


@pytest.fixture
def broken_puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DumpIngestError]]:
    """Errors that the next writes of shards raise, first to last."""
    errors: list[DumpIngestError] = []
    put = ObservedObjects.put

    def flaky(self: ObservedObjects, key: str, data: Any) -> None:
        if errors and "/c/" in key:
            raise errors.pop(0)
        put(self, key, data)

    monkeypatch.setattr(ObservedObjects, "put", flaky)
    yield errors
    assert not errors


def test_passing_trouble_of_the_store_passes(
    filled: MadeDump, store: Path, broken_puts: list[DumpIngestError]
) -> None:
    broken_puts += [StoreUnavailable("busy")] * 3
    report = ingest(filled, store)
    assert len(report.commits) == 5
    assert not report.failures


def test_store_that_refuses_ends_a_one_shot_run(
    filled: MadeDump, store: Path, broken_puts: list[DumpIngestError]
) -> None:
    """Thousands of steps would fail one by one for the same reason."""
    broken_puts.append(StoreDenied("no"))
    report = ingest(filled, store)
    assert isinstance(report.stopped_by, StoreDenied)
    assert len(report.commits) < 5


def test_failing_disk_costs_one_tensor_only(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector must not keep the rest of the step from being stored, nor be hidden."""
    made.add(np.arange(100.0), tensor_name(slot=0))
    bad = made.add(np.arange(100.0) + 1, tensor_name(slot=1))
    made.add(np.arange(100.0) + 2, tensor_name(slot=2))
    preadv, inode = os.preadv, bad.stat().st_ino

    def flaky(fd: int, buffers: Any, offset: int) -> int:
        if os.fstat(fd).st_ino == inode:
            raise OSError(5, "Input/output error")
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
    assert "input/output error" in step.tables.label("problem")[row]
    # Once the disk gives it again, the step is stored whole: another generation, for it lies otherwise.
    (again,) = ingest(made, store).commits
    assert (again.status, again.tensors) == ("complete", 3)
    assert again.fingerprint != summary.fingerprint


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
    """Asynchronous writers are late, and people make room: what is left is less than what was committed."""
    files = [filled.add(np.full(10, float(slot)), tensor_name(slot=slot), step=1) for slot in range(1, 5)]
    ingest(filled, store)
    for path in files:
        path.unlink()
    filled.add(np.zeros(3), tensor_name(slot=9), step=1)
    report = ingest(filled, store)
    assert report.commits == []
    assert [(kept.key, kept.gone) for kept in report.kept] == [(StepKey(0, 1), 4)]
    assert len(open_store(str(store)).tensors(rank=0, step=1)) == 5


def test_a_step_that_is_dumped_again_replaces_the_one_before(filled: MadeDump, store: Path) -> None:
    """A job that restarts from a checkpoint writes as many files, with other times in their names."""
    gone = [filled.add(np.full(10, 7.0), tensor_name(slot=slot, time=5), step=1) for slot in (1, 2)]
    ingest(filled, store)
    for slot, path in enumerate(gone, 1):
        path.unlink()
        filled.add(np.full(10, 8.0), tensor_name(slot=slot, time=9), step=1)
    (summary,) = ingest(filled, store).commits
    assert (summary.key, summary.tensors) == (StepKey(0, 1), 3)


def test_another_dump_replaces_nothing(filled: MadeDump, store: Path, tmp_path: Path) -> None:
    """On one machine every job is rank 0: two dumps into one store are easily confused."""
    ingest(filled, store)
    other = MadeDump(tmp_path / "other")
    other.add(np.full(10, 9.0), step=1)
    report = ingest(other, store)
    assert report.commits == []
    (error,) = report.failures.values()
    assert str(filled.root) in error.message
    running, _ = service(other, store, policy=StepPolicy(replace=True))
    assert [summary.key for summary in ingest_once(running, threading.Event()).commits] == [StepKey(0, 1)]


def test_workers_that_see_other_files_are_told_apart_from_files_that_change(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With node-local disks and workers elsewhere, planning anew would go on for ever."""

    def blind(*_: object) -> None:
        raise SourceChanged("is gone")

    monkeypatch.setattr("workers.tasks.run.convert", blind)
    report = ingest(filled, store)
    assert report.commits == []
    assert all(isinstance(error, ClusterError) for error in report.failures.values())
    assert len(report.failures) == 5


def test_commit_that_is_not_seen_here_is_a_failure(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers with a directory of their own under the same name would swallow the dump."""
    monkeypatch.setattr("ingest.steps.committed.Committed.read", lambda *_: {})
    report = ingest(filled, store)
    assert isinstance(report.stopped_by, StoreError)


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
    running, _ = service(filled, store, policy=StepPolicy(CompletenessPolicy(quiet_s=0.1, settle_s=0.1)))
    report = ingest_once(running, threading.Event())
    assert touched
    assert len({summary.key for summary in report.commits}) == 5
    (tensor,) = open_store(str(store)).tensors(rank=0, step=1)
    assert tensor._step.tables.number("mtime_ns")[tensor.row] == 10**18


def test_store_that_is_away_is_waited_for_by_a_patient_service(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, found = service(filled, store, retry_forever=True)
    running.tick()
    with monkeypatch.context() as patch:
        for name in ("get", "get_many", "children"):
            patch.setattr(ObservedObjects, name, _unavailable)
        filled.add(np.zeros(1), rank=0, step=7)
        running.schedule.look_soon()
        running.tick()
    assert any(isinstance(happening, DependencyDown) for happening in found)
    deadline = time.monotonic() + 10
    while (
        running.submitter.busy or running.view is None or running.view.pending
    ) and time.monotonic() < deadline:
        running.schedule.look_soon()
        running.tick()
    assert StepKey(0, 7) in open_store(str(store)).keys


def test_what_failed_for_want_of_the_store_is_tried_as_soon_as_it_is_back(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the pause of a step that failed, which is a minute."""
    running, found = service(filled, store, retry_forever=True)
    running.dependencies.probe.pause_s = 0.01
    with monkeypatch.context() as patch:
        patch.setattr(ObservedObjects, "put_many", _unavailable)
        patch.setattr("ingest.service.build.commit.read_root", _unavailable)
        _tick_until(running, lambda: sum(isinstance(one, StepFailed) for one in found) == 5)
        for _ in range(5):
            running.tick()
        assert not any(isinstance(one, StepCommitted | StoreRecovered) for one in found)
    _tick_until(running, lambda: sum(isinstance(one, StepCommitted) for one in found) == 5)
    assert sum(isinstance(one, StoreRecovered) for one in found) == 1


def _tick_until(running: Service, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not ready():
        assert time.monotonic() < deadline
        running.tick()


def test_a_patient_service_waits_for_the_store_from_its_first_look_on(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that is started again while the store is away need not be started again and again."""
    ingest(filled, store)
    filled.add(np.zeros(1), rank=0, step=7)
    running, found = service(filled, store, retry_forever=True)
    with monkeypatch.context() as patch:
        patch.setattr(ObservedObjects, "children", _unavailable)
        running.tick()
    assert [type(happening) for happening in found] == [DependencyDown]
    deadline = time.monotonic() + 10
    while running.view is None or running.view.pending or running.submitter.busy:
        assert time.monotonic() < deadline
        running.schedule.look_soon()
        running.tick()
    assert StepKey(0, 7) in open_store(str(store)).keys


def _unavailable(*_: object) -> None:
    raise StoreUnavailable("away")


def test_stopped_service_leaves_whole_steps_only(filled: MadeDump, store: Path) -> None:
    running, _ = service(filled, store)
    stop = threading.Event()
    stop.set()
    ingest_once(running, stop)
    running.watch(stop, drain_s=1)
    assert not store.exists()
    assert not running.submitter.busy


def _poisoning(monkeypatch: pytest.MonkeyPatch, is_poison: Callable[[Entry], bool]) -> list[str]:
    """Have these entries kill who reads them; return where it will be noted that they did."""
    killed: list[str] = []

    def deadly(job: ShardJob) -> Receipt:
        for entry in job.entries.values():
            if is_poison(entry):
                killed.append(entry.source.path)
                raise PoisonedFile("died of it", path=entry.source.path)
        return convert(job)

    monkeypatch.setattr("workers.tasks.run.convert", deadly)
    return killed


def test_poison_is_quarantined_and_found_out_once(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kills as a tensor is kept as bytes, what kills as bytes is named; the next process knows both."""
    first = filled.add(np.ones(3), tensor_name("A.a", time=1), step=1, rank=1).read_bytes()
    filled.add(np.ones(3), tensor_name("B.b"), step=1, rank=1)

    def is_poison(entry: Entry) -> bool:
        return "/B.b" in entry.source.path or ("/A.a" in entry.source.path and entry.header is not None)

    killed = _poisoning(monkeypatch, is_poison)
    report = ingest(filled, store)
    assert sorted(name.rpartition("/")[2][:3] for name in killed) == ["A.a", "B.b", "B.b"]
    assert not report.failures
    step = open_store(str(store)).step(1, 1)
    assert (step.commit.summary.status, step.commit.summary.quarantined) == ("partial", 2)
    rows = [row for row, kind in enumerate(step.tables.label("kind")) if kind == RowKind.QUARANTINED]
    offsets = dict(zip(step.tables.label("source")[rows], step.tables.number("offset")[rows], strict=True))
    assert sorted(offsets.values()) == [-1, 0]
    assert bytes(step.read(next(row for row in rows if step.tables.number("offset")[row] == 0))) == first

    killed.clear()
    assert ingest(filled, store).commits == []
    assert killed == []
    # A file that comes late makes a new generation; what is known of the others still holds.
    filled.add(np.ones(3), step=1, rank=1)
    assert len(ingest(filled, store).commits) == 1
    assert killed == []
    # Whoever touches a file wants it read again.
    os.utime(filled.directory(1, rank=1) / tensor_name("A.a", time=1), ns=(10**18, 10**18))
    ingest(filled, store)
    assert len(killed) == 1


def test_step_full_of_poison_fails_and_quarantines_nothing(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the workers, and not so many files."""
    for slot in range(12):
        filled.add(np.ones(3), tensor_name(slot=slot), step=1, rank=1)
    _poisoning(monkeypatch, lambda entry: "rank_1" in entry.source.path and "/1/" in entry.source.path)
    report = ingest(filled, store)
    assert report.failures.keys() == {StepKey(1, 1)}
    assert "look at the memory of the workers" in report.failures[StepKey(1, 1)].hint
    assert StepKey(1, 1) not in open_store(str(store)).keys


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
    again, _ = service(filled, store, take_removed=True)
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
    running, _ = service(filled, store, retry_forever=True)
    outcomes = [outcome for _ in range(5) for outcome in running.tick()]
    assert [one.plan.key for one in outcomes if isinstance(one, StepFailed)] == [StepKey(0, 0)]
    assert [one.plan.key for one in outcomes if isinstance(one, StepCommitted)] == [StepKey(0, 2)]
    assert open_store(str(store)).step(0, 0).fingerprint == before


def test_what_was_removed_stays_removed_when_the_dump_was_away_meanwhile(
    filled: MadeDump, store: Path
) -> None:
    """A disk is mounted again, while the same process runs."""
    running, _ = service(filled, store, retry_forever=True)
    filled.add(np.ones(3), rank=0, step=2)
    taken = [outcome for _ in range(5) for outcome in running.tick()]
    assert len(taken) > 2
    assert not apply_gc(store, plan_gc(store, GcPolicy(keep_last=1))).left
    away = filled.root / "rank_0"
    away.rename(store.parent / "away")
    running.schedule.look_soon()
    running.tick()
    (store.parent / "away").rename(away)
    running.schedule.look_soon()
    assert [outcome for _ in range(5) for outcome in running.tick()] == []


def look_again(running: Service) -> None:
    """Take what is there by now."""
    running.schedule.look_soon()
    ingest_once(running, threading.Event())


def test_a_step_that_went_back_is_taken_again(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was long given up reaches the store when a newer generation is there."""
    monkeypatch.setattr("ingest.service.commits._RECHECK_S", 0.0)
    running, found = service(filled, store)
    look_again(running)
    leaf = store / "rank_0" / "step_1" / "zarr.json"
    old = leaf.read_bytes()
    filled.add(np.ones(3), tensor_name(slot=7), rank=0, step=1)
    look_again(running)
    new = leaf.read_bytes()
    leaf.write_bytes(old)
    look_again(running)
    assert [one.key for one in found if isinstance(one, CommitReverted)] == [StepKey(0, 1)]
    assert [tensor.slot for tensor in open_store(str(store)).step(0, 1).tensors()] == [0, 7]
    assert leaf.read_bytes() != new  # it was committed once more, and names the old one before it
    look_again(running)
    assert len([one for one in found if isinstance(one, CommitReverted)]) == 1


def test_what_another_watcher_commits_knowingly_stands(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two watchers that see different files do not take turns for ever."""
    monkeypatch.setattr("ingest.service.commits._RECHECK_S", 0.0)
    running, found = service(filled, store)
    look_again(running)
    late = filled.add(np.ones(3), tensor_name(slot=7), rank=0, step=1)
    ingest(filled, store)
    leaf = store / "rank_0" / "step_1" / "zarr.json"
    committed = leaf.read_bytes()
    late.unlink()
    for _ in range(3):
        look_again(running)
    assert not [one for one in found if isinstance(one, CommitReverted)]
    assert leaf.read_bytes() == committed


def test_changes_in_a_dump_that_takes_long_to_list_do_not_bring_looks_about(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing but looking would be done while the job writes into a dump with a backlog."""
    now = [0.0]
    running, found = service(filled, store, clock=lambda: now[0])
    look = Watcher.look

    def slow(self: Watcher, *arguments: Any) -> DumpState:
        now[0] += 2.0
        return look(self, *arguments)

    monkeypatch.setattr(Watcher, "look", slow)

    def looks() -> int:
        running.schedule.note_change()
        running.tick()
        return sum(isinstance(one, DumpState) for one in found)

    assert looks() == 1
    now[0] += 17.9
    assert looks() == 1
    now[0] += 0.2
    assert looks() == 2
