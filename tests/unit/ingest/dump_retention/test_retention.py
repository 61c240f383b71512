"""Deleting what is committed: what goes, what stays and why, and that nothing is lost on the way."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dump_retention.policy import RetentionPolicy
from ingest.service.one_shot import Report
from ingest.steps.committed import FilesNotTaken
from ingest.steps.events import CommitKept, KeepReason, SourceKept
from ingest.steps.state import Pause
from tests.checker import leaves
from tests.deleting import Run
from tests.fake_client import FakeClient, FakeFuture
from tests.npy_files import MadeDump, tensor_name
from workers.errors import UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors

pytestmark = pytest.mark.timeout(60)


def files_of(root: Path) -> dict[str, bytes]:
    """Return what is in a tree."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def reasons(report: Report) -> dict[StepKey, KeepReason]:
    return {event.key: event.reason for event in report.source_kept}


@pytest.fixture
def filled(made: MadeDump) -> MadeDump:
    """Two ranks, three steps of three files, and a run file."""
    for rank in range(2):
        for step in range(3):
            for slot in range(3):
                values = np.full(10, float(rank + step + slot), "<f4")
                made.add(values, tensor_name(slot=slot), rank=rank, step=step)
    (made.root / "rank_0" / "notes.txt").write_text("x")
    return made


def test_all_but_the_newest_steps_of_each_rank_are_deleted(filled: MadeDump, store: Path) -> None:
    """And run files are still found; a second look finds nothing to do, and nothing to tell."""
    run = Run(filled.root, store)
    report = run.ingest()
    assert {event.key for event in report.deleted} == {StepKey(r, s) for r in range(2) for s in range(2)}
    assert sum(event.files for event in report.deleted) == 12
    assert reasons(report) == {StepKey(0, 2): KeepReason.NEWEST, StepKey(1, 2): KeepReason.NEWEST}
    left = {path.relative_to(filled.root).parts[:4] for path in filled.root.rglob("*.npy")}
    assert left == {("rank_0", "Net", "0", "2"), ("rank_1", "Net", "0", "2")}
    assert not list(filled.root.glob("rank_*/Net/0/[01]"))
    before = [leaf.record for leaf in leaves(store)]
    again = Run(filled.root, store)
    report = again.ingest()
    assert (report.commits, report.deleted) == ([], [])
    assert StepKey(0, None) in report.unchanged
    assert again.told(CommitKept) == again.told(SourceKept) == []
    assert [leaf.record for leaf in leaves(store)] == before


def test_a_dry_run_deletes_nothing(filled: MadeDump, store: Path) -> None:
    before = files_of(filled.root)
    report = Run(filled.root, store, dry_run=True).ingest()
    assert sum(event.files for event in report.deleted) == 12
    assert files_of(filled.root) == before


class AfterReadBack(FakeClient):
    """Does something when the first step was read back, before its files are deleted."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(eager=True)
        self._actions = [action]

    def submit(self, function: Callable[..., Any], *arguments: Any, key: str, **options: Any) -> FakeFuture:
        future = super().submit(function, *arguments, key=key, **options)
        if key.startswith("read-back") and self._actions:
            self._actions.pop()()
        return future


def test_a_file_that_is_replaced_after_it_was_read_back_stays(filled: MadeDump, store: Path) -> None:
    """Same name, size and time: only the time of the inode tells, and that nobody can set."""
    path = sorted(filled.root.glob("rank_0/Net/0/0/*"))[1]

    def replace() -> None:
        stat = path.stat()
        other = path.with_name("other")
        other.write_bytes(path.read_bytes()[:-1] + b"!")
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        other.replace(path)

    run = Run(filled.root, store, client=AfterReadBack(replace))
    report = run.ingest()
    assert path.read_bytes().endswith(b"!")
    assert KeepReason.CHANGED in {event.reason for event in run.told(SourceKept)}
    assert [error.reason for error in report.read_back_failures.values()] == ["source_differs"]
    assert len(open_store(str(store)).tensors(rank=0, step=0)) == 3


def test_what_the_store_does_not_have_or_has_from_elsewhere_stays(
    filled: MadeDump, store: Path, tmp_path: Path
) -> None:
    """Without tensors, partial, or of another dump: a copy with the same times has the same fingerprint."""
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False"
    filled.add(header, tensor_name(slot=7), step=0)
    Run(filled.root, store, RetentionPolicy(keep_last=9)).ingest()
    shutil.copytree(filled.root, tmp_path / "copy")
    report = Run(tmp_path / "copy", store).ingest()
    assert not report.deleted
    assert set(reasons(report).values()) == {KeepReason.ELSEWHERE, KeepReason.PARTIAL, KeepReason.NEWEST}

    objects = open_objects(resolve(str(store)))
    committed = commit.read(objects, StepKey(1, 0))
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))
    report = Run(filled.root, store).ingest()
    assert {event.key for event in report.deleted} == {StepKey(0, 1), StepKey(1, 1)}
    assert reasons(report)[StepKey(1, 0)] is KeepReason.NO_TENSORS
    assert reasons(report)[StepKey(0, 0)] is KeepReason.PARTIAL


def test_a_late_file_of_a_deleted_step_stays_and_is_told(filled: MadeDump, store: Path) -> None:
    """Though it comes with a table that the writer has written again: the commit has more than they."""
    filled.add(b"Op Type,x\n", "table.csv", step=0)
    Run(filled.root, store).ingest()
    before = commit.read(open_objects(resolve(str(store))), StepKey(0, 0))
    late = filled.add(np.zeros(3), tensor_name(slot=8), step=0)
    table = filled.add(b"Op Type,x\nAdd,1\n", "table.csv", step=0)
    report = Run(filled.root, store).ingest()
    assert (late.exists(), table.exists(), report.commits) == (True, True, [])
    error = report.failures[StepKey(0, 0)]
    assert isinstance(error, FilesNotTaken)
    assert set(error.files) == {str(path.relative_to(filled.root)) for path in (late, table)}
    after = commit.read(open_objects(resolve(str(store))), StepKey(0, 0))
    assert before is not None
    assert after is not None
    assert after.fingerprint == before.fingerprint


def test_steps_with_an_anomaly_on_any_rank_stay_where_they_are_to(filled: MadeDump, store: Path) -> None:
    filled.add(np.array([np.nan], "<f4"), tensor_name(slot=8), step=1, rank=1)
    report = Run(filled.root, store, RetentionPolicy(keep_anomalous=True)).ingest()
    assert {event.key.step for event in report.deleted} == {0}
    kept = [key for key, why in reasons(report).items() if why is KeepReason.ANOMALOUS]
    assert kept == [StepKey(0, 1), StepKey(1, 1)]


def test_an_anomaly_on_a_rank_that_commits_later_counts(filled: MadeDump, store: Path) -> None:
    """Its files were seen before its commit was there, and have not changed since."""
    filled.add(np.array([np.nan], "<f4"), tensor_name(slot=8), step=1, rank=1)
    run = Run(filled.root, store, RetentionPolicy(keep_anomalous=True))
    table = run.service.table
    table.ensure(StepKey(1, 1)).pause = Pause(float("inf"), "the test says so")
    for _ in range(40):
        run.service.schedule.scan_soon()
        run.service.tick()
    kept = table.ensure(StepKey(0, 1)).deletion.kept
    assert kept is not None
    assert kept.reason is KeepReason.UNDECIDED
    table.ensure(StepKey(1, 1)).pause = None
    report = run.ingest()
    assert {key for key, why in reasons(report).items() if why is KeepReason.ANOMALOUS} == {
        StepKey(0, 1),
        StepKey(1, 1),
    }
    assert len(list(filled.root.glob("rank_*/Net/0/1/*"))) == 7


def test_a_dump_that_may_not_be_written_is_refused_at_once(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not hours later, when the disk is full."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(UsageError, match="cannot delete in the dump"):
        Run(filled.root, store).ingest()
    assert not store.exists()


def test_a_large_step_is_read_back_in_parts_and_deleted_as_a_whole(
    filled: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.dump_retention.retention.JOB_FILES", 2)
    run = Run(filled.root, store)
    assert sum(event.files for event in run.ingest().deleted) == 12
    assert sum(future.key.startswith("read-back") for future in run.client.futures) == 8
