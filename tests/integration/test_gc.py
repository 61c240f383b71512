"""`dump-ingest gc`: what goes, what stays, and what others see meanwhile."""

import json
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import ingest
from bench.steps import commit_tables, make_tables
from ingest.cli.app import app
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.findings.evaluator import SeriesEvaluator
from ingest.reader.consolidated import open_cubes
from ingest.reader.verify import verify
from ingest.steps.committed import Committed
from ingest.steps.table import StepTable
from ingest.store_gc.execute import Execution, GcReport
from ingest.store_gc.inventory import take_inventory
from ingest.store_gc.plan import GcPlan, make_plan
from ingest.store_gc.policy import GcPolicy
from tests import checker
from tests.cli import run
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all
from tests.servers.ceph import S3Bucket
from workers.errors import StepRemoved, StoreDenied, TensorsRemoved, UsageError
from workers.model import SourceFile, StepKey
from workers.rules.load import load_rules
from workers.store import commit, removed
from workers.store.commit import CHANGED
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore, open_objects, resolve
from workers.tasks.convert import convert
from workers.tasks.publish import publish

DAY_S = 86400.0
#: All but the newest, and what has an anomaly.
POLICY = GcPolicy(keep_last=2, keep_anomalous=True)


def age(store: Path, days: float = 2) -> None:
    """Have everything in a store look as if it had been written long ago."""
    then = time.time() - days * DAY_S
    for path in store.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def fill(dump: MadeDump, steps: Sequence[int], *, ranks: int = 2, nan_in: Sequence[int] = ()) -> None:
    """Dump two tensors and a file for each step and rank."""
    for step in steps:
        for rank in range(ranks):
            values = np.full(24, rank + step, "<f4")
            dump.add(values, tensor_name(time=1), step=step, rank=rank)
            if step in nan_in and rank == 1:
                values = np.full(24, np.nan, "<f4")
            dump.add(values, tensor_name(slot=1, time=2), step=step, rank=rank)
            dump.add(b"text", "notes.txt", step=step, rank=rank)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of two ranks, NaN in the third; a previous generation, and remains of two crashes."""
    root = tmp_path_factory.mktemp("gc")
    dump = MadeDump(root / "dump")
    dump.root.mkdir()
    fill(dump, range(6), nan_in=[2])
    store = root / "run.zarr"
    ingest_directly(dump.root, store)
    dump.add(np.ones(3, "<f4"), tensor_name(slot=2, time=3), step=5, rank=0)
    ingest_directly(dump.root, store)  # late: a generation more of one step
    crashed = MadeDump(root / "crashed")
    crashed.root.mkdir()
    fill(crashed, [7], ranks=1)
    (plan,) = plan_all(crashed.root, store)
    convert(plan.jobs[0])
    (store / "rank_0" / "step_0" / f".zarr.json.{'0' * 32}.tmp").write_bytes(b"half")
    age(store)
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    return shutil.copytree(base / "run.zarr", tmp_path / "run.zarr")


@pytest.fixture
def dump(base: Path) -> Path:
    """The dump that it was made of."""
    return base / "dump"


def objects_of(store: Path) -> ObjectStore:
    return open_objects(resolve(str(store)))


def gc(store: Path, policy: GcPolicy = POLICY) -> GcReport:
    return ingest.apply_gc(store, ingest.plan_gc(store, policy))


def steps_of(store: Path) -> list[tuple[int, int | None]]:
    return [(key.rank, key.step) for key in ingest.open_store(store).keys]


def assert_sound(store: Path) -> None:
    """Everything that is visible is whole; of nothing else is anything told."""
    opened = ingest.open_store(store)
    assert list(opened.verify()) == []
    for step in opened.select():
        assert step.tables is not None


def test_a_plan_changes_nothing_and_is_what_happens(store: Path) -> None:
    before = checker.versions(store)
    plan = ingest.plan_gc(store, POLICY)
    assert checker.versions(store) == before
    went = {(one.what, one.rank, one.step) for one in plan.actions}
    assert went == {
        *(("step", rank, step) for rank in (0, 1) for step in (0, 1, 3)),
        ("remains", 0, 5),
        ("remains", 0, 7),
        # The temporary in step 0 goes with it.
    }
    report = ingest.apply_gc(store, plan)
    assert not report.left
    assert (report.nbytes, report.objects) == (plan.nbytes + len(b"half"), plan.objects + 1)
    gone = set(before) - set(checker.versions(store))
    assert len(gone) == report.objects
    assert steps_of(store) == [(0, 2), (1, 2), (0, 4), (1, 4), (0, 5), (1, 5)]
    assert_sound(store)
    assert not ingest.plan_gc(store, POLICY).actions
    assert not (store / "rank_0" / "step_0").exists()


def test_tensors_go_and_everything_else_stays(store: Path) -> None:
    policy = GcPolicy(tensors_around_anomalies=1)
    report = gc(store, policy)
    assert {(one.action.rank, one.action.step) for one in report.done if one.action.what == "tensors"} == {
        (0, 0), (1, 0), (0, 4), (1, 4)
    }  # fmt: skip
    opened = ingest.open_store(store)
    assert [step.key.step for step in opened.select(rank=0) if not step.has_tensors] == [0, 4]
    assert_sound(store)
    assert len(opened.tensors(step=0, where="max == 1")) == 2
    with pytest.raises(TensorsRemoved, match="no anomaly within 1 dumped steps"):
        opened.tensors(rank=0, step=0)[0].read()
    assert not any(p.name == "tensors" for p in (store / "rank_0" / "step_0").rglob("*"))
    assert not ingest.plan_gc(store, policy).actions


def test_the_oldest_go_until_it_fits(store: Path) -> None:
    whole = ingest.plan_gc(store).store_bytes
    fits = whole * 6 // 10
    report = gc(store, GcPolicy(max_bytes=fits, keep_last=1))
    assert not report.left
    assert ingest.plan_gc(store).store_bytes <= fits
    kept = sorted({step for _, step in steps_of(store) if step is not None})
    assert kept == list(range(kept[0], 6))
    plan = ingest.plan_gc(store, GcPolicy(max_bytes=1, keep_last=1))
    assert any("protected" in note for note in plan.notes)
    assert {one.step for one in plan.actions} == {*kept} - {5}


class Killed(BaseException):
    """The process ends here."""


class Fragile(ObjectStore):
    """Ends the process before one of its writes or deletions."""

    def __init__(self, address: StoreAddress, left: int) -> None:
        super().__init__(address)
        self.left = left

    def _one(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def put(self, key: str, data: bytes | bytearray) -> None:
        self._one()
        super().put(key, data)

    def delete(self, key: str) -> None:
        self._one()
        super().delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Three places to be killed at: not each object of many."""
        for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
            self._one()
            super().delete_many(part)

    def prune(self, prefix: str) -> None:
        self._one()
        super().prune(prefix)


def test_killed_before_any_of_its_writes_it_leaves_whole_steps_and_ends_the_same(
    base: Path, tmp_path: Path
) -> None:
    policy = GcPolicy(keep_last=3, keep_anomalous=True)
    whole = shutil.copytree(base / "run.zarr", tmp_path / "whole.zarr")
    shutil.rmtree(whole / "rank_1")
    small = shutil.copytree(whole, tmp_path / "small.zarr")
    gc(whole, policy)
    assert_sound(whole)
    expected = _without_times(whole)
    killed = 0
    while True:
        store = tmp_path / "run.zarr"
        shutil.copytree(small, store)
        fragile = Fragile(resolve(str(store)), killed)
        plan = make_plan(take_inventory(fragile, anomalies=True), policy, time.time())
        try:
            Execution(fragile, plan, threads=1).run()
        except Killed:
            assert_sound(store)
            age(store)
            again = gc(store, policy)
            assert not again.left
            assert _without_times(store) == expected, killed
            shutil.rmtree(store)
            killed += 1
            continue
        break
    assert killed > 20
    assert fragile.left == 0


def _without_times(store: Path) -> dict[str, bytes]:
    """Return the objects of a store but for announcements, and without what tells the time of a removal."""
    found = checker.objects(store)
    kept = {}
    for key, data in found.items():
        if "/removed/" in key:
            kept[key] = b""
        elif key.endswith("zarr.json") and b"without_tensors" in data:
            document = json.loads(data)
            document["attributes"]["dump_ingest"]["without_tensors"]["at"] = ""
            kept[key] = json.dumps(document).encode()
        else:
            kept[key] = data
    return kept


def test_two_at_once_do_what_one_does(store: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(store, tmp_path / "alone.zarr")
    gc(alone)
    plan = ingest.plan_gc(store, POLICY)
    reports: list[GcReport] = []
    threads = [threading.Thread(target=lambda: reports.append(ingest.apply_gc(store, plan))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 2
    assert not any(report.broken for report in reports)
    assert _without_times(store) == _without_times(alone)


def test_a_step_that_was_committed_again_is_left_alone(store: Path) -> None:
    plan = ingest.plan_gc(store, POLICY)
    again = MadeDump(store.parent / "again")
    again.root.mkdir()
    fill(again, [0, 1], ranks=1, nan_in=[])
    ingest_directly(again.root, store)
    report = ingest.apply_gc(store, plan)
    assert {(one.action.rank, one.action.step, one.left) for one in report.left} == {
        (0, step, "it was committed again since the plan was made") for step in (0, 1)
    }
    assert (0, 0) in steps_of(store)
    assert (1, 0) not in steps_of(store)
    assert_sound(store)


def test_an_ingest_under_way_is_left_alone_until_it_ends(store: Path) -> None:
    """Its shards are there and its commit is not: neither they nor the step it is about go."""
    plan = ingest.plan_gc(store, POLICY)
    again = MadeDump(store.parent / "again")
    again.root.mkdir()
    fill(again, [0, 8], ranks=1)
    under_way = [(one, [convert(job) for job in one.jobs]) for one in plan_all(again.root, store)]
    report = ingest.apply_gc(store, plan)
    assert ["another generation is there" in one.left for one in report.left] == [True]
    later = ingest.plan_gc(store, POLICY)
    assert (0, 0) not in {(one.rank, one.step) for one in later.actions}
    assert any("rank 0 step 0: left alone" in note for note in later.notes)
    assert any("stay until nothing was written there for 1d" in note for note in later.notes)
    for one, receipts in under_way:
        publish(one, receipts)
    assert_sound(store)
    assert {(0, 0), (0, 8)} <= set(steps_of(store))


def test_a_removed_step_is_not_taken_again_unless_it_is_dumped_again(store: Path, dump: Path) -> None:
    """The dump still has it, or a part of it; only files that are newer are a step of their own."""
    step = ingest.open_store(store).step(1, 1)
    gc(store)
    objects = ObjectStore(resolve(str(store)))
    asked = Committed(objects, StepTable())
    key = StepKey(1, 1)
    assert asked.was_removed(key, step.fingerprint)
    assert not asked.was_removed(StepKey(1, 77), step.fingerprint)
    part = [SourceFile("rank_1/Net/0/1/x", 1, time.time_ns() - 10**12)]
    assert asked.was_removed(key, "f" * 32, part)
    assert not asked.was_removed(key, "f" * 32, [SourceFile("x", 1, time.time_ns() + 10**12)])
    assert not Committed(objects, StepTable(), take_removed=True).was_removed(key, step.fingerprint)
    (found,) = removed.read(objects, 1)[1]
    assert json.loads(objects.get(found.path) or b"")["why"] == "not among the newest 2 of its rank"
    # What is there again counts, whatever was removed before.
    ingest_directly(dump, store)
    asked.expect([key])
    assert asked.table[key].committed == step.fingerprint
    assert_sound(store)


def test_who_opened_a_step_before_hears_that_it_was_removed(store: Path) -> None:
    opened = ingest.open_store(store)
    read, unread, thinned = opened.step(0, 0), opened.step(0, 1), opened.step(0, 4)
    tensors = read.tensors()
    values = thinned.tensors()[0]
    gc(store, GcPolicy(keep_last=2))
    gc(store, GcPolicy(tensors_around_anomalies=0))
    with pytest.raises(StepRemoved, match="rank 0 step 0 was removed"):
        tensors[0].read()
    with pytest.raises(StepRemoved, match="rank 0 step 1 was removed"):
        unread.tensors()
    with pytest.raises(TensorsRemoved, match="rank 0 step 4: the tensors were removed"):
        values.read()
    assert list(verify(opened, [StepKey(0, 0), StepKey(0, 4)])) == []


def test_the_view_forgets_what_was_removed_and_keeps_statistics(tmp_path: Path) -> None:
    """Killed before the first commit goes, killed right after that, and at its end."""
    objects = open_objects(resolve(tmp_path / "run.zarr"))
    commit.ensure_root(objects)
    for step in range(3):
        for rank in range(2):
            key = StepKey(rank, step)
            commit_tables(objects, key, make_tables(key, ["a", "b"]))
    with Consolidator(objects, keeper=SeriesEvaluator(objects, load_rules(None).enabled)) as consolidator:
        assert consolidator.once().appended == (0, 1, 2)
        evaluated = objects.children("findings")
        policy = GcPolicy(keep_last=2)
        plan = make_plan(take_inventory(objects), policy, time.time())
        # Before it, the clock takes two writes, the tombstone two, the announcement one.
        for writes, rewritten in ((5, ()), (6, (0,))):
            with pytest.raises(Killed):
                Execution(Fragile(objects.address, writes), plan, threads=1).run()
            assert consolidator.once() == StepsConsolidated(rewritten=rewritten)
            view = open_cubes(objects)
            assert view is not None
            assert [bool(name) for name in view.table("fingerprint")[0]] == [not rewritten, True]
        gc(tmp_path / "run.zarr", policy)
        assert consolidator.once() == StepsConsolidated(rewritten=(0,))
        assert consolidator.once() == StepsConsolidated()
        # That a rank is missing is what was wanted: nothing is evaluated again.
        assert objects.children("findings") == evaluated
    assert objects.children(CHANGED) == []
    view = open_cubes(objects)
    assert view is not None
    assert view.table("fingerprint")[0].tolist() == ["", ""]
    assert np.isnan(view.to_xarray()["count"].sel(step=0)).all()


def answer(*args: object) -> Result:
    """Run a command in this process, which starts no other one."""
    return CliRunner().invoke(app, [*map(str, args)])


def refusal(*args: object) -> str:
    """Run a command that must refuse for a mistake of its user, and return what it says."""
    error = answer(*args).exception
    assert isinstance(error, UsageError)
    return error.message


def test_commands_work_on_what_is_left(store: Path, base: Path, tmp_path: Path) -> None:
    gc(store, GcPolicy(keep_last=4))
    gc(store, GcPolicy(tensors_around_anomalies=0))
    ingest.consolidate(store)
    rows = {(row["rank"], row["step"]): row for row in json.loads(answer("ls", store, "--json").stdout)}
    assert {step for _, step in rows} == {2, 3, 4, 5}
    assert [rows[0, step]["has_tensors"] for step in (2, 3, 4, 5)] == [True, False, False, True]
    assert answer("ls", store).stdout.count("complete, no tensors") == 4
    assert json.loads(answer("origin", store, "--json").stdout)["step"] == 2
    where = ("--where", "nan_count > 0 and rank == 1")
    assert len(json.loads(answer("find", store, *where, "--json").stdout)) == 1
    found = json.loads(answer("find", store, "--consolidated", "--where", "max == 4", "--json").stdout)
    assert {(row["rank"], row["step"]) for row in found} == {(0, 4), (1, 3)}
    assert answer("trend", store, "MatMul*", "--json").exit_code == 0
    kept, before = (answer("divergence", one, "--json") for one in (store, base / "run.zarr"))
    assert kept.exit_code == before.exit_code
    exported = answer("export", store, tmp_path / "out", "-n", "4")
    assert exported.exit_code == 4
    for rank in (0, 1):
        assert f"rank {rank} step 4: 2 files: the tensors were removed" in exported.stderr
    shown = answer("show", store, "MatMul*output.0", "-r", "0", "-n", "4")
    assert "no anomaly within 0 dumped steps" in shown.stdout
    assert "no anomaly within 0 dumped steps" in refusal("compare", f"{store}@0,4", f"{store}@0,5")


def test_the_command_shows_a_plan_writes_it_and_carries_it_out(store: Path, tmp_path: Path) -> None:
    shown = answer("gc", store, "--keep-last", "2", "--keep-anomalous")
    assert "not among the newest 2 of its rank" in shown.stdout
    assert "Nothing was changed" in shown.stderr
    file = tmp_path / "plan.json"
    answer("gc", store, "--keep-last", "2", "--keep-anomalous", "--plan", file)
    plan = GcPlan.from_json(file.read_text())
    done = run("gc", store, "--plan", file, "--apply", "--json")
    assert len(done.json["removed"]) == len(plan.actions) == 8
    assert '"event": "gc_removed"' in done.stderr
    assert ingest.apply_gc(store, plan).objects == 0
    assert "Nothing is to be removed" in answer("gc", store, "--keep-last", "2", "--keep-anomalous").stderr


def test_mistakes_are_named(store: Path, tmp_path: Path) -> None:
    assert "no dump-ingest store" in refusal("gc", tmp_path, "--keep-last", "1", "--apply")
    assert "is no duration" in refusal("gc", store, "--older-than", "30")
    assert "is no number of bytes" in refusal("gc", store, "--max-size", "much")
    plan = ingest.plan_gc(store, POLICY)
    other = shutil.copytree(store, tmp_path / "other.zarr")
    with pytest.raises(UsageError, match="the plan is for"):
        ingest.apply_gc(other, plan)
    file = tmp_path / "plan.json"
    file.write_text("{}")
    assert "is no plan of gc" in refusal("gc", store, "--plan", file, "--apply")
    assert "knows its own policy" in refusal("gc", store, "--plan", file, "--apply", "--keep-last", "1")
    assert "No such file" in refusal("gc", store, "--plan", tmp_path / "none", "--apply")
    assert "cannot write" in refusal("gc", store, "--plan", tmp_path)


def test_nothing_behind_a_link_goes(store: Path, tmp_path: Path) -> None:
    """Whoever may write into a store could have it lead to another one; a plan could name that, too."""
    other = shutil.copytree(store, tmp_path / "other.zarr")
    plan = ingest.plan_gc(store, POLICY)
    before = checker.objects(other)
    shutil.rmtree(store / "rank_1")
    (store / "rank_1").symlink_to(other / "rank_1")
    (store / "rank_0" / "step_99").symlink_to(other / "rank_0" / "step_0")
    assert {one.rank for one in ingest.plan_gc(store, POLICY).actions} == {0}
    report = ingest.apply_gc(store, plan)
    assert {one.action.rank for one in report.left} == {1}
    assert checker.objects(other) == before


def test_a_clock_that_is_wrong_removes_nothing(store: Path) -> None:
    """Else what is just being written would look old."""
    objects = objects_of(store)
    tomorrow = time.time() + DAY_S
    plan = make_plan(take_inventory(objects), POLICY, tomorrow)
    before = checker.objects(store)
    with pytest.raises(UsageError, match="ahead of that of the store"):
        Execution(objects, plan, clock=lambda: tomorrow).run()
    assert checker.objects(store) == before


@pytest.mark.s3
def test_on_object_storage(
    s3_bucket: S3Bucket, s3_environment: dict[str, str], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes and times come from listings, and many objects go with one request."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    url = f"{s3_bucket.url}/run.zarr"
    objects = ObjectStore(resolve(url))
    objects.put_many(
        {key: data for key, data in checker.objects(base / "run.zarr").items() if not key.endswith(".tmp")}
    )
    waits = ingest.plan_gc(url, POLICY)
    assert "remains" not in {one.what for one in waits.actions}
    assert abs(time.time() - min(one.modified_at for one in objects.listed().values())) < 60
    plan = ingest.plan_gc(url, GcPolicy(keep_last=2, grace_s=0))
    before = objects.listed()
    report = ingest.apply_gc(url, plan)
    assert not report.left
    after = objects.listed()
    assert len(before.keys() - after.keys()) == report.objects == plan.objects
    assert sum(before[key].nbytes for key in before.keys() - after.keys()) == report.nbytes
    opened = ingest.open_store(url)
    assert {key.step for key in opened.keys} == {4, 5}
    assert list(opened.verify()) == []
    objects.delete_many(["nothing/there"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    denied = ObjectStore(resolve(url, {"use_ssl": False}))
    with pytest.raises(StoreDenied):
        denied.delete_many(["zarr.json"])
