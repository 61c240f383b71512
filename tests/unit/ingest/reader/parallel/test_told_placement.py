"""How a dump tells that ranks hold a tensor, and the grid of these ranks."""

from typing import Any

import numpy as np
import pytest

from ingest.reader.mesh import Coordinate, Mesh
from ingest.reader.unsharded import grid_of, may_be_told, told_placement
from workers.arrays.sharded.placement import MeshGrid, block_placements


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
