"""The ways in which pieces of some shapes may make up a tensor."""

import pytest

from workers.arrays.sharded.placement import block_placements, grids, placements

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("count", "shape", "whole", "expected"),
    [
        (1, (6, 8), (6, 8), {"whole"}),
        (2, (6, 8), (6, 8), {"replicated", "partial sum", "mean"}),
        (2, (3, 8), (6, 8), {"shard 0"}),
        (2, (6, 4), (6, 8), {"shard 1"}),
        (4, (4, 8), (13, 8), {"shard 0 (3 positions of padding)"}),
        (2, (3, 8), (7, 8), {"shard 0 (1 position of padding in B)"}),
        (2, (3, 8), (20, 8), set()),
        (2, (3, 7), (6, 8), set()),
        (2, (3, 8, 1), (6, 8), set()),
    ],
)
def test_shapes_allow_these_ways(count: int, shape: Shape, whole: Shape, expected: set[str]) -> None:
    shapes = [shape] * count
    found = {str(way) for grid in grids(count) for way in placements(grid, shapes, whole)}
    assert found == expected


def test_two_dimensions_of_a_mesh() -> None:
    found = {str(way) for grid in grids(4) for way in placements(grid, [(3, 4)] * 4, (6, 8))}
    assert found == {"shard 0, shard 1", "shard 1, shard 0"}
    halves = {way.kind for grid in grids(4) for way in placements(grid, [(3, 8)] * 4, (6, 8))}
    assert {"replicated, shard 0", "shard 0, replicated", "shard 0, partial sum"} <= halves


def test_two_dimensions_of_a_mesh_hold_chunks_and_blocks() -> None:
    """A fused projection under context parallelism. Like neighbours of a guessed mesh are one dimension."""
    (grid,) = (grid for grid in grids(4) if len(grid.names) == 2)
    found = {str(way) for way in block_placements(grid, [(4, 3)] * 4, (8, 6))}
    assert {"zigzag 0, blocks 1 (1+1+1 per rank)", "blocks 1 (1+1+1 per rank), zigzag 0"} <= found
    along_one = {str(way) for way in block_placements(grid, [(2, 6)] * 4, (8, 6))}
    assert {"zigzag 0, shard 0", "shard 0, zigzag 0"} <= along_one
    assert not {"zigzag 0", "zigzag 0, zigzag 0", "shard 0"} & along_one


def test_a_mesh_of_many_ranks_is_bounded() -> None:
    assert [grid.numbers.shape for grid in grids(6)] == [(6,), (2, 3), (3, 2)]
    assert len(grids(1)) == 1
    assert all(len(placements(grid, [(8,) * 3] * 16, None)) <= 96 for grid in grids(16))
    (way,) = (way for grid in grids(64) for way in placements(grid, [(8, 8)] * 64, (512, 8)))
    assert str(way) == "shard 0"
