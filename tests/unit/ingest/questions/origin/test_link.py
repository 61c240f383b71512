"""What is bad passes from call to call on a rank, and through collectives between ranks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, NAN, WORSE, Ask, operator, origin_of


def test_update_in_place_may_be_the_first(run: MadeRun, ask: Ask) -> None:
    """The parameter was dumped after the update: it holds NaN as an input, too."""
    run.op("MatMul.first", [CLEAN, GOOD], [CLEAN])
    run.op("ApplyMomentum.opt", [BAD, WORSE, numbers(0.1), CLEAN], [BAD])
    answer = ask()
    assert (*operator(answer), answer.how) == (0, 0, "opt", "born")
    assert any("writes in place" in note for note in answer.notes)


def test_dump_of_outputs_alone(run: MadeRun, ask: Ask) -> None:
    for rank in (0, 1):
        run.op("Log.a", [], [BAD if rank == 1 else GOOD], rank=rank)
        run.op("Neg.b", [], [WORSE if rank == 1 else GOOD], rank=rank)
        run.op("AllReduce.sync", [], [numbers(NAN, 0, 0)], rank=rank)
    answer = ask()
    assert operator(answer) == (1, 0, "a")
    assert any("no inputs were dumped" in note.lower() for note in answer.notes)
    assert [(call.op_name, call.is_assumed) for call in answer.spread.next] == [("b", True), ("sync", True)]
    assert answer.spread.ranks == (0, 1)


def test_module_around_the_operator_is_not_named(dump_copy: Callable[[str], Path], store: Path) -> None:
    """msProbe dumps the cell around an operator with the same output, before or behind it."""
    dump = dump_copy("msprobe-26.2.0-mindspore-cpu")
    born = next(dump.rglob("Primitive.matmul.MatMul.0.forward.output.0.npy"))
    before = np.load(born)
    for path in dump.rglob("*.npy"):
        values = np.load(path)
        if values.tobytes() == before.tobytes():
            values.reshape(-1)[1] = NAN
            np.save(path, values)
    after = next(dump.rglob("Primitive.bias_add.BiasAdd.1.forward.output.0.npy"))
    added = np.load(after)
    for path in dump.rglob("*.npy"):
        values = np.load(path)
        if values.tobytes() == added.tobytes():
            values.reshape(-1)[1] = NAN
            np.save(path, values)
    answer = origin_of(dump, store)
    assert operator(answer) == (0, 0, "Primitive.matmul.MatMul.0.forward")
    assert answer.spread.next[0].op_name == "Primitive.bias_add.BiasAdd.1.forward"
    assert answer.alternatives == ()


def test_collective_that_brings_it_is_no_birth(run: MadeRun, ask: Ask) -> None:
    run.op("HcomAllReduce.sync", [CLEAN], [WORSE], rank=0)
    run.op("Mul.next", [WORSE, CLEAN], [BAD], rank=0)
    run.op("Log.a", [CLEAN], [BAD], rank=1)
    run.op("HcomAllReduce.sync", [BAD], [WORSE], rank=1)
    answer = ask()
    assert operator(answer) == (1, 0, "a")
    assert answer.spread.ranks == (0, 1)
    assert [collective.op_name for collective in answer.spread.collectives] == ["sync"]
    assert answer.alternatives == ()


def test_collectives_of_one_name_in_several_groups_are_told_apart(run: MadeRun, ask: Ask) -> None:
    """Ranks 0, 1 and ranks 2, 3 reduce among themselves, under one name."""
    births, given = {0: BAD, 3: WORSE}, (numbers(7, NAN, 9), numbers(NAN, NAN, 11))
    for rank in range(4):
        if rank in births:
            run.op("Log.log", [GOOD], [births[rank]], rank=rank)
        run.op("AllReduce.op1", [births.get(rank, CLEAN)], [given[rank // 2]], rank=rank)
    answer = ask()
    assert operator(answer) == (0, 0, "log")
    assert answer.spread.ranks == (0, 1)
    assert [(collective.from_ranks, collective.to_ranks) for collective in answer.spread.collectives] == [
        ((0,), (1,))
    ]
    assert [(other.rank, other.op_name) for other in answer.alternatives] == [(3, "log")]


def test_what_is_nan_all_over_proves_no_way(run: MadeRun, ask: Ask) -> None:
    """What came to rank 1 through `op3` is from a rank that is not there, and not from `late`."""
    one, nan = np.array(1, np.float32), np.array(NAN, np.float32)
    run.op("AllReduce.op3", [one], [nan], rank=1)
    run.op("AllReduce.op3", [one], [one], rank=0)
    run.op("Log.late", [one], [nan], rank=0)
    for rank in range(2):
        run.op("AllReduce.op9", [nan], [nan], rank=rank)
    answer = ask()
    assert operator(answer) == (0, 0, "late")
    assert [(other.rank, other.op_name) for other in answer.alternatives] == [(1, "op3")]
    assert answer.spread.collectives == ()


def test_all_reduce_in_place_shows_its_result_as_its_input(run: MadeRun, ask: Ask) -> None:
    for rank in (0, 1):
        run.op("Log.a", [CLEAN], [BAD if rank == 1 else GOOD], rank=rank)
        run.op("HcomAllReduce.sync", [WORSE], [WORSE], rank=rank)
    answer = ask()
    assert operator(answer) == (1, 0, "a")
    assert answer.spread.ranks == (0, 1)
    assert answer.spread.collectives[0].is_assumed


def test_first_is_what_ran_first_and_not_what_its_clock_says(run: MadeRun, ask: Ask) -> None:
    """The clock of rank 1 is an hour behind; its NaN comes after an AllReduce, that of rank 0 before."""
    run.clocks[1] = 1_795_216_000_000_000
    for rank in (0, 1):
        run.op("Log.a", [CLEAN], [BAD if rank == 0 else GOOD], rank=rank)
        run.op("AllReduce.sync", [CLEAN], [CLEAN], rank=rank)
        run.op("Sqrt.b", [CLEAN], [GOOD if rank == 0 else BAD], rank=rank)
    answer = ask()
    assert operator(answer) == (0, 0, "a")
    assert [(other.rank, other.op_name) for other in answer.alternatives] == [(1, "b")]
    assert "after a later collective" in answer.alternatives[0].reason


@pytest.mark.parametrize("gathers", ["AllReduce", "Send"])
def test_names_that_do_not_mean_one_collective_order_nothing(gathers: str, run: MadeRun, ask: Ask) -> None:
    """Each rank numbers its operators on its own: `op2` is the second one here, the first one there."""
    run.op(f"{gathers}.op1", [CLEAN], [numbers(1)], rank=0)
    run.op(f"{gathers}.op2", [CLEAN], [numbers(2)], rank=0)
    run.op("Log.late", [CLEAN], [BAD], rank=0)
    run.op(f"{gathers}.op2", [CLEAN], [numbers(1)], rank=1)
    run.op("Log.early", [CLEAN], [WORSE], rank=1)
    run.op(f"{gathers}.op3", [CLEAN], [numbers(2)], rank=1)
    answer = ask()
    assert {answer.op_name, *(other.op_name for other in answer.alternatives)} == {"late", "early"}
    assert "no collective between them tells" in answer.alternatives[0].reason


def test_groups_that_do_not_meet_are_in_no_order(run: MadeRun, ask: Ask) -> None:
    for rank in range(2):
        run.op("AllReduce.op0", [CLEAN], [numbers(3, 3)], rank=rank)
    run.op("Log.log", [CLEAN], [BAD], rank=0)
    run.op("Log.log", [CLEAN], [BAD], rank=2)
    for rank in range(2, 4):
        run.op("AllReduce.op0", [CLEAN], [numbers(4, 4)], rank=rank)
    answer = ask()
    assert operator(answer) == (2, 0, "log")
    assert "no collective between them tells" in answer.alternatives[0].reason
