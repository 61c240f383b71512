"""What a service leaves behind; tests/integration/test_stopping.py has a real one."""

from ingest.service.explaining import Backlog
from ingest.steps.state import Phase, StepTable
from tests.metric_values import listing


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
