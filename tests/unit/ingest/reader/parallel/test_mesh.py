"""Where ranks are in the mesh of their job: as a user tells it, and as the dump does."""

import json
from typing import Any

import pytest

from bench.steps import make_tables
from ingest.reader.mesh import Coordinate, Mesh, replica_groups, told_coordinates
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.tables import LABELS, Tables


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


def test_parts_of_a_sharded_model_are_not_replicas() -> None:
    mesh = Mesh.parse("dp_replicate=2,dp_shard=2")
    assert replica_groups({rank: mesh.coordinates(rank) for rank in range(4)}) == [[0, 2], [1, 3]]


def tables(source: str, *records: dict[str, Any] | str) -> Tables:
    """Return the index of a step whose rows have these records, all of one file."""
    made = make_tables(StepKey(0, 0), [f"Type.name{row}.output.0" for row in range(max(1, len(records)))])
    made.labels[:, LABELS.index("source")] = source
    for row, record in enumerate(records):
        text = record if isinstance(record, str) else json.dumps(record)
        made.labels[row, LABELS.index("record")] = text
    return made


def test_values_of_the_file_tell_rank_and_size() -> None:
    parallel = {"tp_rank": 1, "tp_size": 2, "dp_rank": 0, "vpp_rank": None, "tp_src_rank": 0}
    told = told_coordinates(
        tables("a.pt", {"file": {"meta": {"rank": 1, "megatron_parallel_info": parallel}}})
    )
    assert told == {"tp": Coordinate(1, 2), "dp": Coordinate(0)}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("TP1_PP0_Rank3_pid7/Pass00001.pt", {"tp": 1, "pp": 0}),
        ("x/TP0_PP2_DP1_Rank3_pid7/Pass00001.pt", {"tp": 0, "pp": 2, "dp": 1}),
        ("step=0___rank=1___tp_rank=1___name=x.pt", {"tp": 1}),
        ("dp_rank_3/tp_rank0/x.pt", {"tp": 0, "dp": 3}),
        ("iter_0000100/mp_rank_03/model_optim_rng.pt", {"tp": 3}),
        ("iter_0000100/mp_rank_03_002/model_optim_rng.pt", {"tp": 3, "pp": 2}),
        ("iter_0000100/mp_rank_03_002_001/model_optim_rng.pt", {"tp": 3, "pp": 2, "ep": 1}),
        ("global_step8/bf16_zero_pp_rank_3_mp_rank_01_optim_states.pt", {"tp": 1, "dp": 3}),
        ("global_step8/mp_rank_01_model_states.pt", {"tp": 1}),
        ("gpt_tp2/dp4/TP8.pt", {}),
        ("rank_3/mtp_rank_1x/x.pt", {}),
    ],
)
def test_names_tell_the_rank(source: str, told: dict[str, int]) -> None:
    assert {axis: place.rank for axis, place in told_coordinates(tables(source)).items()} == told


def test_megatron_leaves_out_the_number_of_a_single_stage() -> None:
    told = told_coordinates(
        tables("mp_rank_01_003/a.pt", {"file": {"args": {"pipeline_model_parallel_size": 1}}})
    )
    assert told == {"tp": Coordinate(1), "ep": Coordinate(3)}


def test_dtensor_tells_its_place_in_its_mesh() -> None:
    one = {"mesh_dim_names": ["tp"], "mesh_ranks": [0, 1], "mesh_coordinate": [1]}
    assert told_coordinates(tables("a.pt", {"tensor": one})) == {"tp": Coordinate(1, 2)}
    two = {"mesh_dim_names": ["dp", "layers"], "mesh_ranks": [0, 1, 2, 3], "mesh_coordinate": [1, 0]}
    assert told_coordinates(tables("a.pt", {"tensor": two})) == {"dp": Coordinate(1)}


def test_values_count_before_names() -> None:
    told = told_coordinates(tables("tp_rank_5/a.pt", {"file": {"tp_rank": 1}}))
    assert told == {"tp": Coordinate(1)}
