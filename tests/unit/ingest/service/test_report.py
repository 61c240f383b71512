"""What one run came to, from what happened and what the last look showed."""

from pathlib import Path

import numpy as np

from ingest.dispatch.submitter import StepCommitted
from ingest.dump_retention.policy import RetentionPolicy
from ingest.layouts.base import Problem
from ingest.service.one_shot import Report
from ingest.steps.state import Phase, StepTable, Wait, WaitFor
from ingest.steps.watcher import DumpState
from tests.deleting import Run
from tests.made_steps import made_commit, made_listing, made_plan, made_state
from tests.npy_files import MadeDump
from workers.model import StepKey

KEYS = [StepKey(0, step) for step in range(4)]


def test_a_closed_report_has_what_the_table_has() -> None:
    table, report = StepTable(), Report()
    table.follow(set(KEYS))
    for state in table:
        state.record_listing(made_listing(state.key, 1), now=0.0, reached=0.0)
    table.ensure(KEYS[0]).hold(Phase.COMMITTED)
    table.ensure(KEYS[1]).hold(Phase.REMOVED)
    table.ensure(KEYS[2]).hold(Phase.COMMITTED)
    denied = Problem("rank_0", "permission denied", "Use setfacl.", denied=True)
    table.ensure(KEYS[3]).wait(Wait(WaitFor.PERMISSION, "denied", (denied,)))
    committed = made_commit(KEYS[2], "a").summary
    report.observe(StepCommitted(made_plan(made_state(KEYS[2], 1)), committed, 0.1))
    listings = {state.key: state.listing for state in table if state.listing is not None}
    report.close(table, DumpState(listings, {}, (denied,), frozenset([0, 9])))
    assert (report.unchanged, report.removed, report.missing_steps) == ([KEYS[0]], [KEYS[1]], (9,))
    assert report.ranks_from == {"path": [0]}
    assert report.problems == (denied,)
    assert report.failures[KEYS[3]].hint == "Use setfacl."


def test_steps_that_were_deleted_from_the_dump_were_not_removed_from_the_store(
    made: MadeDump, store: Path
) -> None:
    """`gc` removes; what is deleted here is in the store."""
    for step in range(3):
        made.add(np.full(10, float(step), "<f4"), step=step)
    Run(made.root, store, RetentionPolicy(keep_last=9)).ingest()
    report = Run(made.root, store).ingest()
    assert {event.key for event in report.deleted} == set(KEYS[:2])
    assert report.unchanged == KEYS[:3]
    assert report.removed == []
