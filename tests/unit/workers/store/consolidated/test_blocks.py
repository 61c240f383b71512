"""Ranks and steps are aligned: a tensor has one place, whoever dumped it."""

import numpy as np

from bench.steps import make_tables
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorAxis, TensorKey, block_of, tensors_of
from workers.store.tables import NUMBERS, Tables


def tables(rank: int, *names: str) -> Tables:
    return make_tables(StepKey(rank, 7), names)


def test_an_axis_only_grows() -> None:
    first, second, third = (TensorKey("", "0", "Add", name, "output", 0) for name in "abc")
    axis = TensorAxis([first])
    assert axis.extend([second, first, second]).tolist() == [1, 0, 1]
    assert axis.extend([third]).tolist() == [2]
    assert (len(axis), axis[1], axis.keys) == (3, second, [first, second, third])
    assert (axis.place(third), axis.place(third._replace(copy=1))) == (2, None)
    assert first in axis


def test_ranks_are_aligned_and_what_one_does_not_have_is_absent() -> None:
    axis = TensorAxis()
    block_of(6, {0: tables(0, "c")}, axis)
    left, right = tables(0, "a", "b"), tables(5, "b", "d")
    block = block_of(7, {5: right, 0: left}, axis)
    assert (block.step, block.ranks) == (7, (0, 5))
    assert [key.op_name for key in axis.keys] == ["c", "a", "b", "d"]
    assert block.row.tolist() == [[-1, 0, 1, -1], [-1, -1, 0, 1]]
    assert block.present.tolist() == [[False, True, True, False], [False, False, True, True]]
    np.testing.assert_array_equal(block.statistics[0, 1:3], left.statistics)
    np.testing.assert_array_equal(block.digest[1, 2:], right.digest)
    assert np.isnan(block.statistic("max")[1, :2]).all()
    assert not block.digest[0, 0].any()


def test_occurrences_and_slots_tell_tensors_apart() -> None:
    made = tables(0, "a", "a", "a")
    made.numbers[1, NUMBERS.index("occurrence")] = 1
    made.numbers[2, NUMBERS.index("slot")] = 1
    _, keys = tensors_of(made)
    assert [(key.slot, key.occurrence, key.copy) for key in keys] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
