"""Conditions of rules over one step of several ranks."""

import numpy as np

from ingest.findings.conditions import fulfilled, names_of
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey

AXIS = TensorAxis(
    [
        TensorKey("net", "0", "Log", "loss_Log-op0", "output", 0),
        TensorKey("net", "0", "Relu", "relu-op1", "output", 0, 2),
    ]
)


def test_a_condition_is_evaluated_for_each_rank_and_a_wrong_one_keeps_its_error() -> None:
    statistics = np.full((2, 2, len(FIELDS)), np.nan)
    statistics[:, :, FIELDS.index("max")] = [[1, 2], [3, 4]]
    row = np.array([[0, 1], [0, -1]], np.int32)
    block = Block(5, (0, 7), row, statistics, np.zeros((2, 2, DIGEST_BYTES), np.uint8))
    masks = fulfilled(["max > 1.5", "rank == 7", "max + 'x' > 0"], block, AXIS)
    assert isinstance(masks["max + 'x' > 0"], UsageError)
    large = masks["max > 1.5"]
    assert not isinstance(large, UsageError)
    assert large.tolist() == [[False, True], [True, False]]
    assert names_of(large[:1], AXIS) == {("0", "Relu.relu-op1.output.0#2"), ("0", "Relu.relu-op1#2")}
