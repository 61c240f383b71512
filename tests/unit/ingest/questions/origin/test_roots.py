"""Where it began, how, and how much it matters."""

from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, INF, MASKED, NAN, WORSE, Ask, operator


def test_what_other_ranks_put_in_may_not_be_known(run: MadeRun, ask: Ask) -> None:
    """Rank 1 is not in the answer: the collective is named, and that it may have come from elsewhere."""
    run.op("AllReduce.sync", [CLEAN], [BAD], rank=0)
    run.op("Log.a", [CLEAN], [BAD], rank=1)
    run.op("AllReduce.sync", [BAD], [BAD], rank=1)
    answer = ask(rank=0)
    assert (*operator(answer), answer.how) == (0, 0, "sync", "came through a collective")
    assert any("a rank that the answer is not about" in note for note in answer.notes)


def test_bad_data_came_in(run: MadeRun, ask: Ask) -> None:
    run.op("Cast.a", [BAD], [WORSE])
    run.op("Neg.b", [WORSE], [numbers(NAN, 1, 2)])
    run.parameter("x", BAD)
    answer = ask()
    assert (*operator(answer), answer.how) == (0, 0, "a", "came in")
    assert answer.came_in == "Cast.a.input.0 (Parameter x)"
    assert [call.op_name for call in answer.spread.next] == ["b"]


def test_row_that_is_masked_as_a_whole(run: MadeRun, ask: Ask) -> None:
    """The operator that makes NaN of a mask is named, whoever made the mask."""
    whole = numbers(-INF, -INF, -INF)
    for step in range(2):
        run.op("Add.scores", [CLEAN], [MASKED if step == 0 else whole], step=step)
        run.op("Softmax.sm", [MASKED if step == 0 else whole], [GOOD if step == 0 else BAD], step=step)
    answer = ask()
    assert operator(answer) == (0, 1, "sm")
    assert any("taken for a mask" in note for note in answer.notes)
