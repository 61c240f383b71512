"""gc for Python: a plan changes nothing, and is what happens."""

from pathlib import Path

import pytest

import ingest
from ingest.store_gc.plan import GcPolicy
from tests import checker
from tests.gc_stores import POLICY, assert_sound, gc, steps_of
from workers.errors import TensorsRemoved


def test_a_plan_changes_nothing_and_is_what_happens(store: Path) -> None:
    before = checker.versions(store)
    plan = ingest.plan_gc(store, POLICY)
    assert checker.versions(store) == before
    went = {(action.what, action.rank, action.step) for action in plan.actions}
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
    actions = [done.action for done in report.done]
    assert {(action.rank, action.step) for action in actions if action.what == "tensors"} == {
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
    assert {action.step for action in plan.actions} == {*kept} - {5}
