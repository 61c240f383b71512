"""How it spread, and where else it may have begun."""

from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, INF, MASKED, WORSE, Ask, operator


def test_each_transfer_from_stage_to_stage_is_told(run: MadeRun, ask: Ask) -> None:
    """Three stages of a pipeline that call what they receive by one name."""
    run.op("Log.log", [CLEAN], [BAD], rank=0)
    run.op("Send.op1", [BAD], rank=0)
    run.op("Receive.op1", (), [BAD], rank=1)
    run.op("Add.add", [BAD, GOOD], [WORSE], rank=1)
    run.op("Send.op2", [WORSE], rank=1)
    run.op("Receive.op1", (), [WORSE], rank=2)
    spread = ask().spread
    assert [(collective.from_ranks, collective.to_ranks) for collective in spread.collectives] == [
        ((0,), (1,)),
        ((1,), (2,)),
    ]


def test_updated_parameters_carry_it_into_the_next_step(run: MadeRun, ask: Ask) -> None:
    run.op("Log.grad", [CLEAN], [WORSE])
    run.op("ApplyMomentum.opt", [BAD, BAD, numbers(0.1), WORSE], [BAD])
    run.parameter("weight", BAD)
    run.op("MatMul.first", [CLEAN, BAD], [WORSE], step=1)
    answer = ask()
    assert operator(answer) == (0, 0, "grad")
    assert answer.spread.ends == ("rank 0 Parameter.weight.output.0",)
    assert [(later.step, later.through) for later in answer.spread.steps] == [(1, ("weight",))]


def test_later_steps_name_only_ranks_with_more_than_harmless_infinity(run: MadeRun, ask: Ask) -> None:
    """Every rank masks in every step; rank 1 also holds an infinite state from step 1 on."""
    infinite = numbers(INF, 1)
    for step in range(4):
        for rank in (0, 1):
            run.op("MaskedFill.mask", [CLEAN], [MASKED], rank=rank, step=step)
            run.op("Softmax.sm", [MASKED], [GOOD], rank=rank, step=step)
        if step == 1:
            run.op("Mul.update", [CLEAN, GOOD], [infinite], rank=1, step=step)
        if step > 0:
            run.parameter("state", infinite, rank=1, step=step)
    answer = ask()
    assert operator(answer) == (1, 1, "update")
    assert [(later.step, later.ranks) for later in answer.spread.steps] == [(2, (1,)), (3, (1,))]


def test_a_state_that_is_finite_again_is_in_no_later_step(run: MadeRun, ask: Ask) -> None:
    """The bad step is the first one, so only the next one shows that its masks are harmless."""
    infinite = numbers(INF, 1)
    run.op("Mul.update", [CLEAN, GOOD], [infinite])
    run.parameter("state", infinite)
    for step in range(4):
        run.op("MaskedFill.mask", [CLEAN], [MASKED], step=step)
        run.op("Softmax.sm", [MASKED], [GOOD], step=step)
    answer = ask()
    assert operator(answer) == (0, 0, "update")
    assert answer.spread.steps == ()
