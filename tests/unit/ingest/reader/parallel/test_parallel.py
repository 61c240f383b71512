"""Meshes of ranks, and whole tensors from the parts that ranks hold."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ingest
from bench.steps import make_tables
from ingest.reader.mesh import Coordinate, Mesh, replica_groups, told_coordinates
from ingest.reader.step import Step
from ingest.reader.unsharded import grid_of, may_be_told, pieces_of, told_placement, unshard
from tests.replicas import WEIGHT, replicas
from tests.sharded_net import LAYOUT, held_in_four_ways, write
from tests.stores import ingest_directly, ingest_statistics
from workers.arrays.sharded.placement import MeshGrid, block_placements
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.tables import LABELS, Tables

# Where ranks are in the mesh of their job: as a user tells it, and as the dump does.


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


# How a dump tells that ranks hold a tensor, and the grid of these ranks.


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"meta": {"dims": "b s h[tp]"}}, {"tp": "shard 2"}),
        ({"meta": {"dims": "b s h[tp:partial]"}}, {"tp": "partial sum"}),
        ({"meta": {"dims": "b s[cp:zigzag] h[tp] # dp:replicated"}}, None),
        ({"meta": {"dims": "b s h # tp:replicated"}}, {"tp": "replicated"}),
        ({"meta": {"dims": None}}, {}),
        ({"meta": {"dims": "t 1 (heads*d)[tp] e[moe_ep]"}}, {"tp": "shard 2", "moe_ep": "shard 3"}),
        (
            {"meta": {"dims": "t[cp:zigzag,sp] 1 h # ep:replicated dp:=attn_dp"}},
            {"cp": "zigzag 0 of each sequence", "sp": "shard 0", "ep": "replicated"},
        ),
        ({"meta": {"dims": "s[cp:natural,sp:sharded] h"}}, {"cp": "shard 0", "sp": "shard 0"}),
        ({"meta": {"dims": "h[cp:partial,tp:partial]"}}, {"cp": "partial sum", "tp": "partial sum"}),
        ({"meta": {"dims": "b s(cp,zigzag) h(tp,partial)"}}, {"cp": "zigzag 1", "tp": "partial sum"}),
        (
            {"meta": {"dims": "s(cp:zigzag,sp) (n*d)(tp)"}},
            {"cp": "zigzag 0", "sp": "shard 0", "tp": "shard 1"},
        ),
        ({"tensor": {"placements": ["Shard(0)"], "mesh_dim_names": ["tp"]}}, {"tp": "shard 0"}),
        (
            {"tensor": {"placements": ["Replicate()", "Shard(dim=1)"], "mesh_dim_names": ["dp", "tp"]}},
            {"dp": "replicated", "tp": "shard 1"},
        ),
        ({"tensor": {"placements": ["Partial(sum)"], "mesh_dim_names": ["tp"]}}, {"tp": "partial sum"}),
        (
            {"tensor": {"placements": ["_StridedShard(dim=0, sf=2)"], "mesh_dim_names": ["tp"]}},
            {"tp": "strided shard 0"},
        ),
        ({"tensor": {"placements": ["Partial(avg)"], "mesh_dim_names": ["dp"]}}, {"dp": "mean"}),
        ({"tensor": {"placements": ["Partial(max)"], "mesh_dim_names": ["dp"]}}, {}),
        ({"tensor": {"placements": ["Shard(0)"], "mesh_dim_names": None}}, {}),
        ({}, {}),
    ],
)
def test_annotations_and_dtensors(attributes: dict[str, Any], told: dict[str, str] | None) -> None:
    expected = {"cp": "zigzag 1", "tp": "shard 2", "dp": "replicated"} if told is None else told
    assert told_placement(attributes) == expected


@pytest.mark.parametrize(
    "dims",
    [
        *(
            "",
            "# tp:replicated",
            "h[tp",
            "h[tp:other]",
            "h[tp] d[tp]",
            "h[tp] # tp:replicated",
            "h # tp:partial",
        ),
        *("s[cp:zigzag+partial]", "s[tp,cp:zigzag]", "(a b)[tp]"),
    ],
)
def test_what_is_not_understood_tells_nothing(dims: str) -> None:
    """What SGLang refuses, chunks that are put into order after others are joined, and sums of chunks."""
    assert told_placement({"meta": {"dims": dims}}) == {}


def test_blocks_and_one_sequence_are_what_an_annotation_may_mean() -> None:
    grid = MeshGrid(("tp",), np.arange(2))
    ways = {way.kind: way for way in block_placements(grid, [(4,), (4,)], (8,))}
    assert may_be_told(ways["blocks 0"], {"tp": "shard 0"})
    assert may_be_told(ways["zigzag 0"], {"tp": "zigzag 0 of each sequence"})
    assert not may_be_told(ways["zigzag 0"], {"tp": "shard 0"})
    assert not may_be_told(ways["blocks 0"], {"tp": "replicated"})


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


# A tensor as a whole, put together from the pieces of ranks.


WHOLE = np.random.default_rng(8).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def cut_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("unsharded")
    ranks = held_in_four_ways(WHOLE)
    write(root / "dump", [ranks])
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    return str(root / "run.zarr")


def tensor(cut_store: str, name: str, rank: int = 0) -> ingest.Tensor:
    (found,) = ingest.open_store(cut_store).tensors(f"Module..{name}.output.0", rank=rank, step=0)
    return found


def test_shards_and_sums_as_they_are_said_to_be(cut_store: str, tmp_path: Path) -> None:
    whole = tensor(cut_store, "cut", rank=1).unsharded("shard 0")
    assert np.array_equal(np.asarray(whole), WHOLE)
    assert np.array_equal(whole[2:5, 1], WHOLE[2:5, 1])
    assert (whole.shape, whole.ranks, whole.why, len(whole)) == ((6, 4), (0, 1), "given", 6)
    assert "6x4 of ranks 0-1: shard 0" in repr(whole)
    assert np.allclose(tensor(cut_store, "summed").unsharded("partial sum").read(), WHOLE)
    assert ingest.save_npy(whole, tmp_path / "whole.npy") == ""
    assert np.array_equal(np.load(tmp_path / "whole.npy"), WHOLE)


@pytest.mark.parametrize(
    ("name", "placement", "message"),
    [
        ("cut", "", "how the ranks hold it is not known; by the shapes of its pieces: .*shard 0"),
        ("cut", "shard 5", "cannot be held as 'shard 5'"),
    ],
)
def test_what_is_not_known_is_asked_for(cut_store: str, name: str, placement: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tensor(cut_store, name).unsharded(placement)


@dataclass(frozen=True)
class OnePiece:
    """The tensor of one rank, in memory."""

    values: npt.NDArray[np.float32]
    rank: int
    dims: str
    name: str = "x"
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def digest(self) -> str:
        return self.values.tobytes().hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return {"meta": {"dims": self.dims}}

    def elements(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.values.reshape(-1)[start:stop]


def test_what_is_told_of_three_axes_of_a_mesh() -> None:
    """Of four axes of a tensor, more ways are possible than are tried."""
    mesh = Mesh.parse("cp=2,ep=2,tp=2")
    places = [mesh.coordinates(rank) for rank in range(8)]
    whole = np.random.default_rng(0).normal(size=(2, 8, 4, 2)).astype(np.float32)
    chunks = [np.concatenate([whole[:, :2], whole[:, 6:]], axis=1), whole[:, 2:6]]
    parts = [np.split(chunk, 2, axis=2)[place] for chunk in chunks for _ in range(2) for place in range(2)]
    pieces: Any = [
        OnePiece(part, rank, "b s[cp:zigzag] h[tp] d # ep:replicated") for rank, part in enumerate(parts)
    ]
    assert np.array_equal(unshard(pieces, places).read(), whole)
    for dims, message in {
        "b s[cp:zigzag] h d[tp:partial] # ep:replicated": "",
        "b t[cp:zigzag] h[tp] d # ep:replicated": "zigzag 1 of each sequence",
        "b s[cp:zigzag] h d e[tp] # ep:replicated": "not among what its pieces allow",
        "b s[cp:zigzag] h[ep] d # tp:replicated": "ranks hold different bytes",
    }.items():
        told: Any = [OnePiece(piece.values, piece.rank, dims) for piece in pieces]
        if not message:
            assert unshard(told, places).shape == (2, 8, 2, 2)
            continue
        with pytest.raises(UsageError, match=message):
            unshard(told, places)


def test_pieces_of_which_only_statistics_were_dumped_are_not_taken_for_equal(tmp_path: Path) -> None:
    cut_store = ingest_statistics(tmp_path, [{"Parameter.weight": 3.0}, {"Parameter.weight": 4.0}])
    (piece, _) = ingest.open_store(cut_store).tensors("Parameter.weight*")
    with pytest.raises(UsageError, match="how the ranks hold it is not known"):
        piece.unsharded()


def test_every_rank_that_has_the_tensor_has_a_piece() -> None:
    made = replicas(ranks=range(3), steps=[1])
    made.put(3, 1, {"Adam.other.input.0": 1})  # without the tensor
    made.put(4, 2, {WEIGHT: 1})  # without the step
    step = made.store.step(1, 1)
    row = next(tensor.row for tensor in step.tensors() if tensor.name == WEIGHT)
    pieces, places = pieces_of(step, row)
    assert [own.rank for own in pieces] == [0, 1, 2]
    assert {own.op_name for own in pieces} == {"dense"}
    assert places == [{}, {}, {}]


def test_a_step_that_is_opened_by_itself_knows_no_other_ranks() -> None:
    step = replicas(ranks=range(2), steps=[1]).store.step(0, 1)
    with pytest.raises(UsageError, match="open the tensor through a store"):
        pieces_of(Step(step.objects, step.commit), 0)
