"""What a service leaves behind; tests/integration/test_stopping.py has a real one."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ingest.dispatch.outcomes import StepCommitted
from ingest.service.explaining import Backlog
from ingest.service.service import settle
from ingest.steps.state import Phase, StepTable
from tests.metric_values import listing
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all
from workers.model import SourceFile


def test_counts_what_the_last_look_showed_and_nothing_has_committed() -> None:
    table = StepTable()
    backlog = Backlog(table)
    assert (backlog.steps, backlog.nbytes) == (0, 0)
    waiting = [listing(0, 1, files=3), listing(1, 1), listing(1, None)]
    states = [table.ensure(listed.key) for listed in waiting]
    for state, listed in zip(states, waiting, strict=True):
        state.record_listing(listed, now=0.0, reached=0.0)
    assert (backlog.steps, backlog.nbytes) == (2, 400)
    states[1].record_commit("a", now=1.0)
    assert (backlog.steps, backlog.nbytes) == (1, 300)
    states[0].hold(Phase.COMMITTED)
    assert (backlog.steps, backlog.nbytes) == (0, 0)


def test_a_step_that_changes_after_its_commit_is_left_again() -> None:
    table = StepTable()
    state = table.ensure(listing(0, 1).key)
    state.record_listing(listing(0, 1), now=0.0, reached=0.0)
    state.record_commit("a", now=1.0)
    assert Backlog(table).steps == 0
    state.record_listing(listing(0, 1, files=2), now=2.0, reached=2.0)
    assert Backlog(table).steps == 1


def test_does_not_count_what_cannot_be_taken_of_a_partial_step(tmp_path: Path) -> None:
    """The next look lists the step as pending until it is planned again; then, too, it cannot be taken."""
    made = MadeDump(tmp_path / "dump")
    made.add(np.ones(3, np.float32))
    made.add(b"torn", tensor_name("Torn.op"))
    [plan] = [plan for plan in plan_all(made.root, tmp_path / "t.zarr") if plan.key.step is not None]
    [summary] = ingest_directly(made.root, tmp_path / "s.zarr")
    assert summary.status == "partial"
    seen = replace(listing(0, 0), files=tuple({entry.source for entry in plan.entries}))
    table = StepTable()
    state, backlog = table.ensure(plan.key), Backlog(table)
    state.record_listing(seen, now=0.0, reached=0.0)
    assert backlog.steps == 1
    settle(StepCommitted(plan, summary, 1.0), state, 1.0)
    assert backlog.steps == 0
    state.record_listing(seen, now=2.0, reached=2.0)
    assert backlog.steps == 0
    more = replace(seen, files=(*seen.files, SourceFile("rank_0/Net/0/1/late.npy", 10, 1)))
    state.record_listing(more, now=3.0, reached=3.0)
    assert backlog.steps == 1
