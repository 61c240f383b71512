"""Placements that contents show."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.in_memory import InMemory, Values, elements
from workers.arrays.sharded.placement import MeshGrid, grids
from workers.arrays.sharded.placement_search import FoundPlacement, place_by_content

WHOLE = np.random.default_rng(7).normal(size=(48, 12)).astype(np.float32)
#: Of two ranks: positions of sequences of 8, 24 and 16 tokens.
SEQUENCES = [
    [*range(2), *range(6, 8), *range(8, 14), *range(26, 32), *range(32, 36), *range(44, 48)],
    [*range(2, 6), *range(14, 26), *range(36, 44)],
]
#: Of two ranks: columns of blocks of 8, 2 and 2.
BLOCKS = [[0, 1, 2, 3, 8, 10], [4, 5, 6, 7, 9, 11]]


def placed(parts: Sequence[Values], grid: Sequence[MeshGrid] | None = None) -> FoundPlacement:
    shapes = [part.shape for part in parts]
    return place_by_content(grid or grids(len(parts)), shapes, elements(parts), InMemory(WHOLE), WHOLE.shape)


def test_sequences_in_zigzag_and_unequal_blocks() -> None:
    packed, blocks = placed([WHOLE[own] for own in SEQUENCES]), placed([WHOLE[:, own] for own in BLOCKS])
    assert str(packed.placement) == "zigzag 0 of each sequence (8+24+16)"
    assert str(blocks.placement) == "blocks 1 (4+1+1 per rank)"
    assert packed.placement is not None
    assert np.array_equal(
        packed.placement.assembly.read(elements([WHOLE[own] for own in SEQUENCES]), 0, WHOLE.size),
        WHOLE.reshape(-1),
    )


def test_each_dimension_of_a_mesh_is_found() -> None:
    parts = [WHOLE[own][:, columns] for own in SEQUENCES for columns in BLOCKS]
    assert str(placed(parts).placement) == ("zigzag 0 of each sequence (8+24+16), blocks 1 (4+1+1 per rank)")
    noise = np.random.default_rng(8).normal(size=(24, 12)).astype(np.float32)
    sums = [part for own in SEQUENCES for part in (WHOLE[own] - noise, noise)]
    assert str(placed(sums).placement) == "zigzag 0 of each sequence (8+24+16), partial sum"
    halves = [part for own in SEQUENCES for part in np.split(WHOLE[own], 2)]
    assert str(placed(halves).placement) == "zigzag 0 of each sequence (8+24+16), shard 0"


def test_an_order_of_no_known_way_is_named_by_its_dimension() -> None:
    grid = MeshGrid(("cp", "tp"), np.arange(4).reshape(2, 2))
    swapped = [WHOLE[:, 6:], WHOLE[:, :6]] * 2
    found = placed(swapped, [grid])
    assert found.placement is None
    assert found.order is not None
    assert found.order.of == "tp"


@pytest.mark.parametrize("values", [np.ones_like(WHOLE), WHOLE + 1])
def test_other_values_have_no_order(values: Values) -> None:
    assert placed([values[own] for own in SEQUENCES]) == FoundPlacement()
