"""Carrying a plan out: what goes, what stays, and what others see meanwhile."""

import shutil
import time
from pathlib import Path

import pytest
from msgspec import structs

import ingest
from ingest.reader.verifying import verify
from ingest.store_gc.execute import Execution
from ingest.store_gc.plan import GcPolicy, make_plan, take_inventory
from tests import checker
from tests.gc_stores import (
    DAY_S,
    POLICY,
    Fragile,
    Killed,
    age,
    assert_sound,
    fill,
    gc,
    objects_of,
    steps_of,
    without_times,
)
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.errors import StepRemoved, TensorsRemoved, UsageError
from workers.model import StepKey
from workers.store.opening import connect, resolve


def test_killed_before_any_of_its_writes_it_leaves_whole_steps_and_ends_the_same(
    gc_base: Path, tmp_path: Path
) -> None:
    policy = GcPolicy(keep_last=3, keep_anomalous=True)
    whole = shutil.copytree(gc_base / "run.zarr", tmp_path / "whole.zarr")
    shutil.rmtree(whole / "rank_1")
    small = shutil.copytree(whole, tmp_path / "small.zarr")
    gc(whole, policy)
    assert_sound(whole)
    expected = without_times(whole)
    killed = 0
    while True:
        store = tmp_path / "run.zarr"
        shutil.copytree(small, store)
        fragile = Fragile(connect(resolve(str(store))), killed)
        plan = make_plan(take_inventory(fragile, anomalies=True), policy, time.time())
        try:
            Execution(fragile, plan, threads=1).run()
        except Killed:
            assert_sound(store)
            age(store)
            again = gc(store, policy)
            assert not again.left
            assert without_times(store) == expected, killed
            shutil.rmtree(store)
            killed += 1
            continue
        break
    assert killed > 20
    assert fragile.left == 0


def test_a_step_that_was_committed_again_is_left_alone(store: Path) -> None:
    plan = ingest.plan_gc(store, POLICY)
    again = MadeDump(store.parent / "again")
    again.root.mkdir()
    fill(again, [0, 1], ranks=1, nan_in=[])
    ingest_directly(again.root, store)
    report = ingest.apply_gc(store, plan)
    assert {(done.action.rank, done.action.step, done.left) for done in report.left} == {
        (0, step, "it was committed again since the plan was made") for step in (0, 1)
    }
    assert (0, 0) in steps_of(store)
    assert (1, 0) not in steps_of(store)
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


def test_nothing_behind_a_link_goes(store: Path, tmp_path: Path) -> None:
    """Whoever may write into a store could have it lead to another one; a plan could name that, too."""
    other = shutil.copytree(store, tmp_path / "other.zarr")
    plan = ingest.plan_gc(store, POLICY)
    before = checker.objects(other)
    shutil.rmtree(store / "rank_1")
    (store / "rank_1").symlink_to(other / "rank_1")
    (store / "rank_0" / "step_99").symlink_to(other / "rank_0" / "step_0")
    assert {action.rank for action in ingest.plan_gc(store, POLICY).actions} == {0}
    report = ingest.apply_gc(store, plan)
    assert {done.action.rank for done in report.left} == {1}
    assert checker.objects(other) == before


def test_a_clock_that_is_wrong_removes_nothing(store: Path) -> None:
    """Else what is just being written would look old."""
    objects = objects_of(store)
    tomorrow = time.time() + DAY_S
    plan = make_plan(take_inventory(objects), POLICY, tomorrow)
    before = checker.objects(store)
    with pytest.raises(UsageError, match="ahead of the clock of the store"):
        Execution(objects, plan, clock=lambda: tomorrow).run()
    assert checker.objects(store) == before


@pytest.mark.parametrize("made_at", ["2199-01-01T00:00:00+00:00", "soon"])
def test_a_plan_from_a_clock_that_ran_ahead_removes_nothing(store: Path, made_at: str) -> None:
    plan = structs.replace(ingest.plan_gc(store, POLICY), made_at=made_at)
    before = checker.objects(store)
    with pytest.raises(UsageError, match="the plan"):
        Execution(objects_of(store), plan).run()
    assert checker.objects(store) == before


def test_a_clock_that_jumps_while_it_runs_makes_nothing_old(store: Path) -> None:
    """What decides is the clock of the store at the start, and since then a monotonic one."""
    now = [time.time()]
    execution = Execution(objects_of(store), ingest.plan_gc(store, POLICY), clock=lambda: now[0])
    execution._compare_clocks()
    now[0] += 10 * DAY_S
    assert abs(execution._now() - time.time()) < 60
