"""Ranks on the mesh of their job."""

import pytest

from ingest.reader.parallel.mesh import Coordinates, Mesh
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


def test_without_all_places_there_is_none() -> None:
    places: list[Coordinates] = [Mesh.parse("dp=2,tp=2").coordinates(rank) for rank in (0, 1, 2)]
    assert grid_of(places) is None
    assert grid_of([places[0], {}]) is None
    assert grid_of(places[:1]) is None
