"""Collectives order ranks; clocks and names alone do not."""

import pytest

from ingest.questions.origin.calls import Call, CollectiveCall, RankTrace
from ingest.questions.origin.collective_order import CollectiveOrder
from ingest.reader.flow.content import CallKey
from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, WORSE, Ask, operator


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


def collectives(*names: str, first_row: int = 10) -> dict[CallKey, CollectiveCall]:
    """Return calls of `AllReduce`, ten rows apart; outputs are not known."""
    keys = [CallKey("net", "0", "AllReduce", name, 0) for name in names]
    return {key: CollectiveCall(first_row + 10 * number) for number, key in enumerate(keys)}


def call_at(rank: int, row: int) -> Call:
    return Call(rank, 0, CallKey("net", "0", "Log", f"log{row}", 0), row, 1, (), (), ())


def test_ranks_that_disagree_on_the_order_get_levels_all_the_same() -> None:
    order = CollectiveOrder(
        {0: RankTrace(0, 0, (), collectives("a", "b")), 1: RankTrace(1, 0, (), collectives("b", "a"))}
    )
    assert order.level_of(call_at(0, 25)) >= 2
