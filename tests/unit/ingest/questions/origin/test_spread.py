"""How it spread, and where else it may have begun."""

from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, WORSE, Ask, operator


def test_ranks_that_nothing_orders_are_both_named(run: MadeRun, ask: Ask) -> None:
    for rank in (0, 1):
        run.op("Log.a", [CLEAN], [BAD], rank=rank)
    answer = ask()
    assert operator(answer) == (0, 0, "a")
    assert "no collective between them" in answer.alternatives[0].reason


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
