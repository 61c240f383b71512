"""Which dump files are deleted, when, and how."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dump_retention.policy import RetentionPolicy, SourceJudge
from ingest.dump_retention.retention import Proven, Removed, remove, step_directories
from ingest.layouts.detect import find_dump
from ingest.service.one_shot import Report
from ingest.service.service import Service
from ingest.steps.committed import FilesNotTaken
from ingest.steps.events import CommitKept, KeepReason, SourceKept, newest_steps
from ingest.steps.state import Pause
from tests.checker import leaves
from tests.services import FakeClient, FakeFuture, Run, make_service
from tests.stores import DumpLibrary, MadeDump, ingest_directly, tensor_name
from workers.errors import DumpError, UsageError
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors

# Deleting what is committed: what goes, what stays and why, and that nothing is lost on the way.


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


# Why files of committed steps stay, over a dump and a store: commits are read, and other ranks looked at.


FIRST, SECOND = StepKey(0, 0), StepKey(1, 0)
CAREFUL = RetentionPolicy(keep_anomalous=True)


@pytest.fixture
def filled_to(made: MadeDump, store: Path) -> MadeDump:
    """Two ranks of two steps, in the store; step 0 of rank 1 has a NaN."""
    for rank in range(2):
        for step in range(2):
            value = np.nan if (rank, step) == (1, 0) else 1.0
            made.add(np.full(10, value, "<f4"), rank=rank, step=step)
    ingest_directly(made.root, store)
    return made


def looked(made: MadeDump, store: Path, policy: RetentionPolicy) -> tuple[Service, SourceJudge]:
    """Return a service that looked once, and the judge that it asks."""
    service = make_service(made.root, store, retention=policy, host="test-host")
    service.scan()
    assert service.retention is not None
    return service, service.retention.judge


def reasons_of(service: Service, judge: SourceJudge) -> dict[StepKey, KeepReason | None]:
    states = [state for state in service.table if state.held and state.key.step == 0]
    return {state.key: why[0] if why else None for state, _, _, why in judge.judge(states)}


@pytest.mark.parametrize(("keep_last", "newest"), [(1, {5}), (2, {3, 5}), (9, {1, 3, 5})])
def test_the_newest_steps_of_each_rank_are_so_by_number(keep_last: int, newest: set[int]) -> None:
    keys = [StepKey(0, 5), StepKey(0, 1), StepKey(0, None), StepKey(0, 3), StepKey(7, 0)]
    chosen = newest_steps(keys, keep_last)
    assert {key.step for key in chosen if key.rank == 0} == newest
    assert StepKey(7, 0) in chosen


def test_one_step_of_each_rank_stays_at_least(filled_to: MadeDump, store: Path) -> None:
    _, judge = looked(filled_to, store, RetentionPolicy(keep_last=0))
    assert judge.newest() == {StepKey(0, 1), StepKey(1, 1)}


def test_a_rank_that_has_not_committed_leaves_the_others_undecided(filled_to: MadeDump, store: Path) -> None:
    filled_to.add(np.ones(3), rank=1, step=0)  # a late file: pending again
    service, judge = looked(filled_to, store, CAREFUL)
    assert reasons_of(service, judge) == {FIRST: KeepReason.UNDECIDED}
    service.table.ensure(SECOND).lose_files()
    service.table.ensure(SECOND).is_unchecked = True
    assert reasons_of(service, judge) == {FIRST: KeepReason.UNDECIDED}


# Unlinking: only what was compared, only as it was, and never outside of the dump.


STEP = "rank_0/net/3"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A step of three files."""
    step = tmp_path / "dump" / STEP
    step.mkdir(parents=True)
    for name in "abc":
        (step / name).write_text(name)
    return tmp_path / "dump"


def proven(root: Path) -> list[Proven]:
    files = []
    for path in sorted(root.rglob("[abc]")):
        stat = path.stat()
        file = SourceFile(str(path.relative_to(root)), stat.st_size, stat.st_mtime_ns)
        files.append(Proven(file, stat.st_ctime_ns))
    return files


def run(root: Path, files: list[Proven], stop: threading.Event | None = None) -> Removed:
    listed = {member.file.path for member in files}
    return remove(root, files, listed=listed, directories=[STEP], stop=stop or threading.Event())


def test_a_directory_with_anything_left_in_it_stays(root: Path) -> None:
    (root / STEP / "below").mkdir()
    assert run(root, proven(root)).files == 3
    assert (root / STEP / "below").exists()


@pytest.mark.parametrize("what", ["step", "above", "file"])
def test_a_link_in_the_place_of_a_file_or_directory_is_not_followed(root: Path, what: str) -> None:
    """Whoever can write into the dump could else have files deleted that only this process may delete."""
    files = proven(root)
    outside = root.parent / "outside"
    swapped = {"step": root / STEP, "above": root / "rank_0", "file": root / STEP / "b"}[what]
    swapped.rename(outside)
    swapped.symlink_to(outside)
    removed = run(root, files)
    assert removed.changed
    assert removed.files == (2 if what == "file" else 0)
    assert outside.exists()
    assert what == "file" or len(list(outside.rglob("[abc]"))) == 3


def test_what_grew_or_is_no_file_any_more_stays(root: Path) -> None:
    files = proven(root)
    (root / STEP / "a").write_text("longer")
    (root / STEP / "b").unlink()
    os.mkfifo(root / STEP / "b")
    removed = run(root, files)
    assert (removed.files, len(removed.changed)) == (1, 2)
    assert sorted(path.name for path in (root / STEP).iterdir()) == ["a", "b"]


def test_a_file_that_was_not_listed_keeps_all_others(root: Path) -> None:
    files = proven(root)
    (root / STEP / "late").write_text("x")
    removed = run(root, files)
    assert (removed.files, removed.changed) == (0, [f"{STEP}/late"])


def test_hard_links_are_only_unlinked(root: Path) -> None:
    """Of two names in the step, the first unlinked changes the time of the other."""
    os.link(root / STEP / "a", root.parent / "kept")
    (root / STEP / "b").unlink()
    os.link(root / STEP / "a", root / STEP / "b")
    assert run(root, proven(root)).files == 3
    assert (root.parent / "kept").read_text() == "a"


def test_a_path_that_leaves_the_dump_is_refused(root: Path) -> None:
    (root.parent / "a").write_text("x")
    with pytest.raises(DumpError):
        run(root, [Proven(SourceFile("../a", 1, 0), 0)])
    assert (root.parent / "a").exists()


def test_the_directory_of_a_step_above_its_ranks_goes_with_them(dumps: DumpLibrary, made: MadeDump) -> None:
    """`step0/rank1`: it is empty when all of its ranks are. Where the place is the step, there is none."""
    made.add(b"x", step=4)
    (listing,) = find_dump(made.root).scan({}).listings
    assert list(step_directories(listing.places)) == []
    name = "msprobe-26.2.0-pytorch-cpu"
    tree = find_dump(next(path for path in sorted(dumps[name].iterdir()) if path.is_dir()))
    listing = next(step for step in tree.scan({}).listings if step.key.step is not None)
    above = set(step_directories(listing.places))
    assert above
    assert all(directory.rpartition("/")[2].startswith("step") for directory in above)
    assert all((tree.root / directory).is_dir() for directory in above)
