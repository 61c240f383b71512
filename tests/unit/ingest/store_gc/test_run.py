"""gc for Python: tensors go, and everything else stays."""

from pathlib import Path

import pytest

import ingest
from ingest.store_gc.plan import GcPolicy
from tests.gc_stores import assert_sound, gc
from workers.errors import TensorsRemoved


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
