"""Whether a tensor is a part of another one."""

import math

import numpy as np
import pytest

from tests.in_memory import InMemory, Values
from workers.arrays.sharded.agreement import part_error

WHOLE = np.random.default_rng(4).normal(size=(6, 8)).astype(np.float32)


@pytest.mark.parametrize("part", [WHOLE, WHOLE[:3], WHOLE[4:], WHOLE[:, 6:]])
def test_all_of_it_or_an_equal_share(part: Values) -> None:
    assert part_error(InMemory(part), part.shape, InMemory(WHOLE), WHOLE.shape) == 0.0


@pytest.mark.parametrize("part", [WHOLE[:4], WHOLE[:3, :4], WHOLE.reshape(-1), WHOLE[:0]])
def test_other_shapes_are_no_part(part: Values) -> None:
    assert part_error(InMemory(part), part.shape, InMemory(WHOLE), WHOLE.shape) == math.inf


def test_other_values_are_far_off() -> None:
    assert part_error(InMemory(WHOLE[:3] + 1), (3, 8), InMemory(WHOLE), WHOLE.shape) > 0.1
