"""Notes say what is not certain."""

import numpy as np

from tests.made_runs import MadeRun
from tests.origin_runs import BAD, CLEAN, WORSE, Ask, operator


def test_step_that_the_rank_does_not_have_is_said(run: MadeRun, ask: Ask) -> None:
    for rank, step in ((0, 0), (1, 0), (1, 1), (1, 2)):
        run.op("Add.add", [CLEAN, CLEAN], [CLEAN], rank=rank, step=step)
    run.op("Add.add", [BAD, CLEAN], [BAD], step=2)
    answer = ask()
    assert "Rank 0 has no step 1 in the answer: it may have begun there." in answer.notes


def test_the_step_before_that_the_rank_lacks_is_said_of_what_was_certainly_born(
    run: MadeRun, ask: Ask
) -> None:
    for rank, step in ((0, 0), (0, 1), (0, 2), (1, 0)):
        run.op("Log.log", [CLEAN], [CLEAN], rank=rank, step=step)
    run.op("Log.log", [CLEAN], [BAD], rank=1, step=2)
    assert "Rank 1 has no step 1 in the answer: it may have begun there." in ask().notes


def test_what_was_read_in_another_form_is_not_said_to_be_unread(run: MadeRun, ask: Ask) -> None:
    run.op("Log.log", [CLEAN], [BAD])
    run.op("Add.add", [BAD.astype(np.float16)], [WORSE])
    answer = ask()
    assert operator(answer) == (0, 0, "log")
    assert any("in another form" in note for note in answer.notes)
    assert [other.op_name for other in answer.alternatives] == ["add"]
