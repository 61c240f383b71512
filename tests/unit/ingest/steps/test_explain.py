"""What people are told of a step: its phase, and why."""

from ingest.steps.decide import StepPolicy, StepRow, explain, explain_table
from ingest.steps.state import (
    Pause,
    Phase,
    StepState,
    StepTable,
)
from tests.made_steps import made_state
from workers.model import StepKey

KEY = StepKey(3, 40)


def row(state: StepState, **more: object) -> StepRow:
    return explain(state, StepPolicy(), 100.0, **more)  # type: ignore[arg-type]


def test_a_pause_says_when_it_ends_and_what_it_is_for() -> None:
    state = made_state(KEY, 1)
    state.pause = Pause(142.04, "no scheduler")
    paused = row(state)
    assert (paused.phase, paused.tried_again_in_s) == ("paused", 42.0)
    assert paused.reason == "left alone for 42 s more: no scheduler"
    state.pause = Pause(99.0, "no scheduler")
    assert row(state).phase == "ready"


def test_tasks_say_how_far_they_are() -> None:
    state = made_state(KEY, 1)
    work = state.offer(jobs=12)
    assert (row(state).phase, row(state).waits_for) == ("offered", "tasks")
    work.phase, work.jobs_done = Phase.CONVERTING, 7
    assert row(state).reason == "7 of 12 tasks done"
    work.phase, work.retry = Phase.RETRYING, Pause(102.5, "a worker died")
    state.is_isolated = True
    retrying = row(state)
    assert (retrying.phase, retrying.tried_again_in_s) == ("retrying", 2.5)
    assert retrying.reason.startswith("submitted again in 2.5 s: a worker died; workers died of it")
    work.phase, work.retry = Phase.PUBLISHING, None
    assert row(state).phase == "publishing"


def test_rows_come_by_step_and_ranks_without_run_files_have_no_row_for_them() -> None:
    table = StepTable()
    table.follow({StepKey(1, 0), StepKey(0, 1), StepKey(0, None), StepKey(1, None)})
    table.ensure(StepKey(0, None)).is_unchecked = True
    rows = explain_table(table, StepPolicy(), 0.0)
    assert [(shown.rank, shown.step) for shown in rows] == [(0, None), (1, 0), (0, 1)]
    assert rows[0].waits_for == "store"
    known = StepRow(1, 0, "ready", "as was found out")
    assert explain_table(table, StepPolicy(), 0.0, {table.ensure(StepKey(1, 0)): known})[1] is known
