"""Ranks on the mesh of their job."""

import pytest

from ingest.reader.parallel.mesh import Coordinate, Coordinates, Mesh
from ingest.reader.parallel.mesh_grid import grid_of


@pytest.mark.parametrize(
    ("mesh", "ranks", "names", "numbers"),
    [
        ("tp=2", [0, 1], ("tp",), [0, 1]),
        ("dp=2,tp=2", [0, 1, 2, 3], ("dp", "tp"), [[0, 1], [2, 3]]),
        ("tp=2,dp=2", [0, 1, 2, 3], ("tp", "dp"), [[0, 1], [2, 3]]),
        ("pp=2,tp=2", [2, 3], ("tp",), [0, 1]),
    ],
)
def test_places_make_a_grid(mesh: str, ranks: list[int], names: tuple[str, ...], numbers: object) -> None:
    parsed = Mesh.parse(mesh)
    grid = grid_of([parsed.coordinates(rank) for rank in ranks])
    assert grid is not None
    assert (grid.names, grid.numbers.tolist()) == (names, numbers)


def test_axes_that_follow_from_others_do_not_count() -> None:
    """Sequence parallelism along tp; attention of which tp has two parts. What is told comes first."""
    places = [
        {
            axis: Coordinate(place, 2)
            for axis, place in {"tp": rank % 2, "cp": rank // 2, "sp": rank % 2}.items()
        }
        for rank in range(4)
    ]
    found = [grid_of(places), grid_of(places, {"cp": "zigzag 0", "sp": "shard 0", "tp": "replicated"})]
    assert [grid.names if grid else None for grid in found] == [("cp", "tp"), ("cp", "sp")]
    parts = [
        {"tp": Coordinate(rank, 4), "attn_tp": Coordinate(rank % 2, 2), "attn_dp": Coordinate(rank // 2, 2)}
        for rank in range(4)
    ]
    found = [grid_of(parts), grid_of(parts, {"attn_tp": "shard 1"})]
    assert [grid.names if grid else None for grid in found] == [("tp",), ("attn_dp", "attn_tp")]


def test_axes_that_cut_together_come_in_the_order_that_is_told() -> None:
    mesh = Mesh.parse("cp=2,tp=2")
    grid = grid_of([mesh.coordinates(rank) for rank in range(4)], {"tp": "shard 0", "cp": "shard 0"})
    assert grid is not None
    assert (grid.names, grid.numbers.tolist()) == (("tp", "cp"), [[0, 2], [1, 3]])


def test_without_all_places_there_is_none() -> None:
    places: list[Coordinates] = [Mesh.parse("dp=2,tp=2").coordinates(rank) for rank in (0, 1, 2)]
    assert grid_of(places) is None
    assert grid_of([places[0], {}]) is None
    assert grid_of(places[:1]) is None
