"""The pieces of a tensor on all ranks."""

import pytest

from ingest.reader.parallel.pieces import rows_of_ranks
from ingest.reader.step import Step
from tests.diverging import WEIGHT, replicas
from workers.errors import UsageError


def test_every_rank_that_has_the_tensor_has_a_piece() -> None:
    made = replicas(ranks=range(3), steps=[1])
    made.put(3, 1, {"Adam.other.input.0": 1})  # without the tensor
    made.put(4, 2, {WEIGHT: 1})  # without the step
    step = made.store.step(1, 1)
    row = next(tensor.row for tensor in step.tensors() if tensor.name == WEIGHT)
    pieces, places = rows_of_ranks(step, row)
    assert [own.key.rank for own, _ in pieces] == [0, 1, 2]
    assert pieces[1][0] is step
    assert {str(own.tables.label("op_name")[at]) for own, at in pieces} == {"dense"}
    assert places == [{}, {}, {}]


def test_a_step_that_is_opened_by_itself_knows_no_other_ranks() -> None:
    step = replicas(ranks=range(2), steps=[1]).store.step(0, 1)
    with pytest.raises(UsageError, match="open the tensor through a store"):
        rows_of_ranks(Step(step.objects, step.commit), 0)
