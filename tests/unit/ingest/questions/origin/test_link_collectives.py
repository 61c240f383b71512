"""What is bad passes from rank to rank through collectives."""

import numpy as np

from tests.made_runs import MadeRun, numbers
from tests.origin_runs import BAD, CLEAN, GOOD, NAN, WORSE, Ask, operator


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
