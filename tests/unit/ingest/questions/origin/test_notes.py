"""Notes say what is not certain."""

import numpy as np

from ingest.questions.origin.notes import PassedBy, notes_on_search
from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, INF, WORSE, Ask, operator


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


def test_one_input_of_a_product_is_not_enough(run: MadeRun, ask: Ask) -> None:
    run.op("MatMul.a", [CLEAN], [BAD], step=1)
    notes = ask().notes
    assert any("only one input of a was dumped" in note.lower() for note in notes)
    assert any("Step 1 is the first of the answer" in note for note in notes)
    run.op("MatMul.a", [CLEAN], [GOOD])
    notes = ask().notes
    assert any("Step 0 of this rank has nothing of the kind" in note for note in notes)


def test_long_lists_of_what_was_passed_by_are_cut(run: MadeRun, ask: Ask) -> None:
    for number in range(7):
        run.op(f"MaskedFill.mask{number}", [CLEAN], [numbers(number, -INF)])
        run.op(f"Softmax.sm{number}", [numbers(number, -INF)], [GOOD])
    (note,) = ask().notes
    assert note.startswith("Harmless, for what read it gave finite numbers: -Inf born in MaskedFill (mask0)")
    assert note.endswith(" and 2 more.")


def test_what_is_not_known_is_counted() -> None:
    assert notes_on_search(PassedBy(), [3, 4, 7], 2) == [
        "The same tensors hold harmless infinity in steps 3-4, 7.",
        "Of 2 tensors it is not known whether they hold NaN or Inf.",
    ]
    assert notes_on_search(PassedBy(), [], 0) == []
