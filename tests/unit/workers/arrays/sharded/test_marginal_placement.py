"""How ranks hold a tensor is told from marginals alone, as `placement_search` tells it from elements."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from workers.arrays.marginals import marginals_of
from workers.arrays.sharded.placement import held_as, ways_held

RNG = np.random.default_rng(6)
WHOLE = RNG.standard_normal((96, 400, 40)).astype(np.float32)
Array = np.ndarray[Any, Any]


def told(pieces: Sequence[Array], whole: Array = WHOLE, axes: Sequence[int] = (0, 1, 2)) -> str:
    ways = ways_held(
        [marginals_of(np.ascontiguousarray(piece), axes) for piece in pieces],
        [piece.shape for piece in pieces],
        marginals_of(whole, axes),
        whole.shape,
    )
    return str(held_as(ways))


def partial_sums(ranks: int) -> list[Array]:
    parts = [RNG.standard_normal(WHOLE.shape).astype(np.float32) for _ in range(ranks - 1)]
    return [*parts, WHOLE - np.sum(parts, axis=0)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_way_is_told_from_all_others(ranks: int) -> None:
    assert told([WHOLE] * ranks) == "replicated"
    assert told(partial_sums(ranks)) == "partial sum"
    for axis in range(3):
        assert told(np.array_split(WHOLE, ranks, axis)) == f"shard {axis}"


def test_one_axis_suffices_and_order_matters() -> None:
    pieces = np.array_split(WHOLE, [30], 1)
    for axis in range(3):
        assert told(pieces, axes=[axis]) == "shard 1"
    assert told(pieces[::-1], axes=[1]) == "None"


def test_what_is_something_else_is_not_told() -> None:
    other = RNG.standard_normal(WHOLE.shape).astype(np.float32)
    assert told([other, other]) == "None"
    assert told([other[:48], other[48:]]) == "None"
    assert told([WHOLE[:48]]) == "None"
