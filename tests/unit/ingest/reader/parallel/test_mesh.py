"""Places of ranks in the mesh of a job."""

import pytest

from ingest.reader.parallel.mesh import (
    Coordinate,
    Mesh,
    describe_places,
    format_coordinates,
    is_at,
    ordered,
    parse_place,
    replica_groups,
)
from workers.errors import UsageError


def test_the_last_axis_of_a_mesh_varies_fastest() -> None:
    mesh = Mesh.parse("dp=2, tp=3")
    assert str(mesh) == "dp=2,tp=3"
    places = [mesh.coordinates(rank) for rank in range(6)]
    assert [(place["dp"].rank, place["tp"].rank) for place in places] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert list(places[5].items()) == [("tp", Coordinate(2, 3)), ("dp", Coordinate(1, 2))]


def test_rank_beyond_the_mesh_is_refused() -> None:
    with pytest.raises(UsageError, match="tp=2: has 2 ranks, and the store has rank 2") as raised:
        Mesh.parse("tp=2").coordinates(2)
    assert "Name all axes" in raised.value.hint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not axis=number"),
        ("tp", "'tp' is not axis=number"),
        ("tp=2,", "'' is not axis=number"),
        ("tp=x", "is not axis=number"),
        ("xp=2", "'xp' is not an axis; axes: tp, pp, dp"),
        ("tp=2,tp=2", "tp is given twice"),
        ("tp=0", "sizes are from 1"),
        ("tp=1000,dp=1001", "a million ranks at most"),
    ],
)
def test_text_that_is_not_a_mesh_is_refused_with_an_example(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as raised:
        Mesh.parse(text)
    assert "--mesh tp=2,dp=4" in raised.value.hint


def test_ranks_that_differ_in_the_data_parallel_axis_alone_are_replicas() -> None:
    mesh = Mesh.parse("pp=2,dp=2,tp=2")
    coordinates = {rank: mesh.coordinates(rank) for rank in range(8)}
    assert replica_groups(coordinates) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert replica_groups({0: coordinates[0], 1: coordinates[1]}) == []


def test_nothing_is_concluded_while_the_place_of_a_rank_is_unknown() -> None:
    mesh = Mesh.parse("dp=3")
    assert replica_groups({0: mesh.coordinates(0), 1: mesh.coordinates(1), 2: {}}) == []


def test_parts_of_a_sharded_model_are_not_replicas() -> None:
    mesh = Mesh.parse("dp_replicate=2,dp_shard=2")
    assert replica_groups({rank: mesh.coordinates(rank) for rank in range(4)}) == [[0, 2], [1, 3]]


def test_places_are_read_compared_and_written() -> None:
    coordinates = ordered({"dp": Coordinate(3, 4), "pp": Coordinate(0, 1), "tp": Coordinate(1)})
    assert list(coordinates) == ["tp", "pp", "dp"]
    assert format_coordinates(coordinates) == "tp 1, dp 3/4"
    assert is_at(coordinates, parse_place("tp=1, dp=3"))
    assert not is_at(coordinates, parse_place("dp=0"))
    assert not is_at(coordinates, parse_place("cp=0"))
    assert describe_places([coordinates, {"dp": Coordinate(0, 4)}, {}]) == "tp 1; pp 0; dp 0, 3"
    with pytest.raises(UsageError, match="'tp' is not a rank"):
        parse_place("tp")
